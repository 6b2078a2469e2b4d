"""``speed_up``: models of Transformers compute the same, with their own parameters."""

import copy
import inspect
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize, prune

import ownbert
from ownbert.exceptions import InputError
from ownbert.families import FAMILIES
from ownbert.transformers import encoder_call
from ownbert.transformers.encoder_call import FastEncoder, log
from ownbert.transformers.speed_up import _encoders, _reads_rows
from support.parity_models import ALL, BASES, MOSTLY_SLOW, padded, their_model

# A gradient that is zero in theory (a key's bias) is as large as the rounding of others.
CLOSE = {"atol": 2e-5, "rtol": 2e-4}
_RATES = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate", "dropout"),
    *("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout"),
    *("seq_classif_dropout", "qa_dropout", "summary_last_dropout", "classifier_dropout_prob"),
    "pooler_dropout",
)


def _pair(model_type: str, architecture: str, **settings: Any) -> tuple[Any, Any]:
    """A model without dropout, and a copy that is sped up."""
    rates = {name: 0.0 for name in _RATES if name in FAMILIES[model_type].defaults}
    theirs = their_model(model_type, architecture, **rates, **settings)
    return theirs, ownbert.speed_up(copy.deepcopy(theirs))


def _fast(model: nn.Module) -> FastEncoder:
    return next(_encoders[module] for module in model.modules() if module in _encoders)


def _given(model: Any, architecture: str) -> dict[str, Tensor]:
    """Inputs with padding, and labels for each kind of head."""
    given = padded(model.config, architecture)
    kinds = FAMILIES[model.config.model_type].architectures[architecture].kinds
    mask = given["attention_mask"]
    (rows, length), classes = mask.shape, torch.arange(mask.shape[0]) % 2
    tokens = torch.arange(rows * length).view(rows, length)
    if kinds == ("choice",):
        given = {name: value[:, None].repeat(1, 2, 1) for name, value in given.items()}
    if "mlm" in kinds or "tokens" in kinds:
        given["labels"] = torch.where(mask.bool(), tokens % 3, -100)
    if "discriminator" in kinds:
        given["labels"] = tokens % 2
    if kinds in (("classification",), ("nsp",), ("choice",)):
        given["labels"] = classes
    if kinds[1:] == ("nsp",):
        given["next_sentence_label"] = classes
    if kinds[1:] == ("sop",):
        given["sentence_order_label"] = classes
    if kinds in (("span",), ("beam_span",)):
        given |= {"start_positions": classes, "end_positions": classes + 1}
    return given


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor) or value is None:
        yield value
    else:
        for part in value:
            yield from _flat(part)


def _results(model: Any, given: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """The output of a call, its tensors, and the gradients of the loss."""
    model.zero_grad()
    out = model(**given)
    values = list(_flat(out.values() if hasattr(out, "keys") else out))
    loss = values[0]
    if loss.ndim:
        loss = (loss.sin() * torch.linspace(-1, 1, loss.numel()).view_as(loss)).sum()
    loss.backward()
    return out, values, {name: p.grad for name, p in model.named_parameters()}


def _assert_same(theirs: Any, fast: Any, given: dict[str, Any], keep: Tensor | None = None) -> None:
    """Same outputs and gradients; ``keep``: logits are compared where it is true."""
    out, values, gradients = _results(theirs, given)
    our_out, our_values, our_gradients = _results(fast, given)
    assert type(our_out) is type(out)
    if hasattr(out, "keys"):
        assert [*our_out.keys()] == [*out.keys()]
    for ours, value in zip(our_values, values, strict=True):
        if value is None:
            assert ours is None
        elif keep is not None and value.shape[:2] == keep.shape:
            torch.testing.assert_close(ours[keep], value[keep], **CLOSE)
        else:
            torch.testing.assert_close(ours, value, **CLOSE)
    for name, gradient in gradients.items():
        assert (our_gradients[name] is None) == (gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(our_gradients[name], gradient, **CLOSE)


CASES = [
    case
    for case, (model_type, name) in zip(MOSTLY_SLOW, ALL, strict=True)
    if not FAMILIES[model_type].architectures[name].decoder
]


@pytest.mark.parametrize(("model_type", "architecture"), CASES)
def test_loss_outputs_and_all_gradients(model_type: str, architecture: str):
    theirs, fast = _pair(model_type, architecture)
    given = _given(theirs, architecture)
    spec = FAMILIES[model_type].architectures[architecture]
    keep = None
    if {"mlm", "tokens", "discriminator"} & {*spec.kinds}:
        keep = given["attention_mask"].bool()
    _assert_same(theirs, fast, given, keep)
    for training in (True, False):
        theirs.train(training), fast.train(training)
        _assert_same(theirs, fast, {**given, "return_dict": False}, keep)
        if spec.kinds != ("beam_span",):
            _assert_same(theirs, fast, {**given, "output_hidden_states": True})
    if model_type == "modernbert":
        assert (_fast(fast).calls > 0) == (spec.kinds not in ((), ("span",)))
    else:
        assert _fast(fast).calls == 5 - (spec.kinds == ("beam_span",)) * 2
        assert not _fast(fast).reasons


@pytest.mark.parametrize(("model_type", "architecture"), BASES)
def test_second_derivatives(model_type: str, architecture: str):
    """A penalty on gradients of embeddings; Transformers has none for its other attention."""
    theirs, fast = _pair(model_type, architecture)
    mask = padded(theirs.config)["attention_mask"]
    embeddings = theirs.get_input_embeddings()(padded(theirs.config)["input_ids"]).detach()
    found = []
    for model in (theirs.train(), fast.train()):
        inputs = embeddings.clone().requires_grad_()
        given = {"token_type_ids": 1 - mask} if model_type == "xlnet" else {}
        hidden = model(inputs_embeds=inputs, attention_mask=mask, **given)[0]
        loss = (hidden.sin() * mask[..., None]).mean()
        (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
        (slope**2).sum().backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert [*found[0]] == [*found[1]]
    size = max(float(x.abs().max()) for x in found[0].values())
    for name, gradient in found[0].items():
        torch.testing.assert_close(
            found[1][name], gradient, atol=1e-4 * size, rtol=1e-3, msg=lambda m, n=name: f"{n} {m}"
        )


@pytest.mark.parametrize(("model_type", "architecture"), BASES)
def test_large_batches_are_computed_in_parts(
    model_type: str, architecture: str, monkeypatch: pytest.MonkeyPatch
):
    theirs, fast = _pair(model_type, architecture)
    runs, run = [], encoder_call._run
    monkeypatch.setattr(encoder_call, "_TOKENS", 12)
    monkeypatch.setattr(encoder_call, "_run", lambda *a, **k: runs.append(a) or run(*a, **k))
    ids = torch.arange(60).view(6, 10) % 20 + 5
    mask = (torch.arange(10) < torch.tensor([3, 10, 1, 4, 10, 7])[:, None]).long()
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if model_type in ("bert", "electra"):
        given["position_ids"] = torch.arange(10)[None]
    for options in ({}, {"output_hidden_states": True}, {"return_dict": False}):
        ours, expected = (_values(model, {**given, **options}) for model in (fast, theirs))
        for actual, value in zip(ours, expected, strict=True):
            torch.testing.assert_close(actual, value, **CLOSE)
    memory = model_type == "xlnet"  # which is that of a whole batch
    assert len(runs) == (3 if memory or model_type == "modernbert" else 3 * 5)
    ownbert.speed_up(fast, skip_padding=True)
    found = _values(fast, given)[0]
    torch.testing.assert_close(found[mask == 1], expected[0][mask == 1], **CLOSE)
    nothing = _values(fast, {**given, "attention_mask": mask * 0})[0]
    assert nothing.shape == found.shape


def _with_attention(model: Any, attention: str) -> Any:
    """The same model with another implementation of attention; None if it does not have it."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = attention
    try:
        other = type(model)(config).eval()
    except ValueError:
        return None
    other.load_state_dict(model.state_dict())
    return other


def _values(model: Any, given: dict[str, Any]) -> list[Any]:
    with torch.no_grad():
        out = model(**given)
    return list(_flat(out.values() if hasattr(out, "keys") else out))


@pytest.mark.parametrize(("model_type", "architecture"), BASES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_masks_positions_and_embeddings(model_type: str, architecture: str, attention: str):
    theirs = _with_attention(_pair(model_type, architecture)[0], attention)
    if theirs is None:
        pytest.skip(f"{architecture} has no {attention}")
    fast = ownbert.speed_up(copy.deepcopy(theirs))
    given = padded(theirs.config)
    mask, ids = given.pop("attention_mask"), given.pop("input_ids")
    gap = mask.clone()
    gap[0, 3] = 0
    cases: list[dict[str, Any]] = [
        {"input_ids": ids},
        {"input_ids": ids, "attention_mask": mask.flip(1)},
        {"input_ids": ids, "attention_mask": gap},
        {"input_ids": ids, "attention_mask": gap.float()},
        {"input_ids": ids, "attention_mask": mask, "return_dict": False},
        {"input_ids": ids[:1], "attention_mask": mask[:1]},
        {"inputs_embeds": theirs.get_input_embeddings()(ids).detach(), "attention_mask": mask},
    ]
    if model_type not in ("deberta-v2", "xlnet"):  # Transformers subtracts it from 1
        cases.append({"input_ids": ids, "attention_mask": gap.bool()})
    if "position_ids" in inspect.signature(theirs.forward).parameters:
        positions = torch.arange(9).expand(3, 9).flip(1) + 2
        cases.append({"input_ids": ids, "attention_mask": mask, "position_ids": positions})
    for case in cases:
        case |= {name: value[: len(next(iter(case.values())))] for name, value in given.items()}
        for ours, value in zip(_values(fast, case), _values(theirs, case), strict=True):
            torch.testing.assert_close(ours, value, **CLOSE)
    assert _fast(fast).calls == (2 if model_type == "modernbert" else len(cases))
    # By position, too.
    case = cases[1]
    with torch.no_grad():
        by_position = fast(case["input_ids"], case["attention_mask"], **given)
    torch.testing.assert_close(by_position[0], theirs(**case)[0], **CLOSE)


CALLS: dict[str, dict[str, Any]] = {
    "attention weights": {"output_attentions": True},
    "attention_mask with 3": {"attention_mask": torch.ones(3, 9, 9)},
    "must be 1 for tokens and 0 for padding": {"attention_mask": torch.full((3, 9), 0.5)},
    "without tokens": {"attention_mask": torch.tensor([[1] * 9, [0] * 9, [1] * 9])},
    "position_ids that begin again": {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5]])},
    "head_mask": {"head_mask": torch.tensor([1.0, 0.0])},
    "token_type_ids has shape": {"token_type_ids": torch.zeros(1, 1, dtype=torch.long)},
}


@pytest.mark.parametrize("why", CALLS)
def test_calls_that_are_left_to_transformers(why: str):
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    theirs, fast = _pair("bert", "BertModel")
    given = {"input_ids": padded(theirs.config)["input_ids"], **CALLS[why]}
    for _ in range(2):
        for ours, value in zip(_values(fast, given), _values(theirs, given), strict=True):
            assert torch.equal(ours, value) or bool(value.isnan().any())
    assert _fast(fast).calls == 0
    (reason,) = _fast(fast).reasons
    assert why in reason
    log.removeHandler(handler)
    assert [reason in line for line in lines] == [True]  # once


def test_mistakes_have_the_errors_of_transformers():
    theirs, fast = _pair("bert", "BertModel")
    long, ids = torch.zeros(1, 15, dtype=torch.long), torch.tensor([[1, 2]])
    mistakes = [
        {},
        {"input_ids": long},
        {"input_ids": torch.tensor([[99]])},
        {"input_ids": ids, "inputs_embeds": torch.zeros(1, 2, 16)},
        {"input_ids": ids, "token_type_ids": torch.tensor([[0, 7]])},
        {"input_ids": ids, "attention_mask": torch.ones(1, 3)},
        {"input_ids": ids, "attention_mask": torch.ones(1, 1, 2, 2)},
        {"input_ids": ids, "nonsense": 3},
        {"input_ids": [[1, 2]]},
    ]
    for given in mistakes:
        with pytest.raises(Exception) as expected:
            theirs(**given)
        with pytest.raises(type(expected.value)) as actual:
            fast(**given)
        assert str(actual.value) == str(expected.value)


def _first(model: Any) -> Any:
    return model.encoder.layer[0]


def _replace_layer(model: Any) -> None:
    class Halved(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) / 2

    old = model.encoder.layer[1].output.dense
    new = Halved(old.in_features, old.out_features)
    new.load_state_dict(old.state_dict())
    model.encoder.layer[1].output.dense = new


def _quantize(model: Any) -> None:
    for layer in model.encoder.layer:
        layer.output = torch.ao.quantization.quantize_dynamic(layer.output, {nn.Linear})


def _parametrize(model: Any) -> None:
    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    parametrize.register_parametrization(model.encoder.layer[0].output.dense, "weight", Twice())


def _drop_in_evaluation(model: Any) -> None:
    torch.manual_seed(0)
    model.embeddings.dropout.train()


CHANGES = {
    "activation": lambda m: setattr(_first(m).intermediate, "intermediate_act_fn", nn.ReLU()),
    "hook": lambda m: _first(m).register_forward_hook(lambda _, args, out: (out[0] * 2, *out[1:])),
    "forward": lambda m: setattr(_first(m).output, "forward", lambda hidden, given: given),
    "pruned": lambda m: prune.l1_unstructured(_first(m).output.dense, "weight", 0.5),
    "without a layer": lambda m: m.encoder.layer.__delitem__(0),
    "double": lambda m: m.double(),
    "layer": _replace_layer,
    "parametrized": _parametrize,
    "quantized": _quantize,
    "dropout in evaluation": _drop_in_evaluation,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("before", [True, False])
def test_changed_layers_are_left_to_transformers(change: Any, before: bool):
    theirs, _ = _pair("bert", "BertModel", num_hidden_layers=3)
    fast = copy.deepcopy(theirs)
    given = padded(theirs.config)
    if before:
        ownbert.speed_up(fast)
        _values(fast, given)
    change(theirs)
    expected = _values(theirs, given)
    change(fast)
    ownbert.speed_up(fast)
    actual = _values(fast, given)
    assert all(map(torch.equal, actual, expected))
    assert _fast(fast).calls == 0
    assert _fast(fast).reasons


def _new_values(model: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1


NEW_PARAMETERS = {
    "words": lambda m: m.resize_token_embeddings(50),
    "heads": lambda m: m.prune_heads({0: [1]}),
    "frozen": lambda m: [
        part.requires_grad_(False) for part in (m.embeddings, _first(m).attention.self.query)
    ],
    "values": _new_values,
    "parameter": lambda m: setattr(
        _first(m).output.dense, "weight", nn.Parameter(_first(m).output.dense.weight.detach() * 2)
    ),
    "without a pooler": lambda m: setattr(m, "pooler", None),
}


@pytest.mark.parametrize("change", NEW_PARAMETERS.values(), ids=NEW_PARAMETERS)
def test_changed_parameters_are_used(change: Any):
    theirs, fast = _pair("bert", "BertModel")
    given = padded(theirs.config)
    _values(fast, given)
    for model in (theirs, fast):
        torch.manual_seed(0)
        change(model)
    _assert_same(theirs, fast, given)
    for ours, value in zip(_values(fast, given), _values(theirs, given), strict=True):
        torch.testing.assert_close(ours, value, **CLOSE)
    assert not _fast(fast).reasons


def test_classes_that_a_library_changes(monkeypatch: pytest.MonkeyPatch):
    """Also after the call of ``speed_up``, as libraries of kernels do."""
    theirs, fast = _pair("bert", "BertForTokenClassification")
    given = _given(theirs, "BertForTokenClassification")
    layer, whole = type(theirs.bert.encoder.layer[0].output), type(theirs)
    layer_forward, whole_forward = layer.forward, whole.forward

    def halved(self: Any, hidden: Tensor, given: Tensor) -> Tensor:
        return layer_forward(self, hidden, given) / 2

    def doubled(self: Any, **given: Any) -> Any:
        out = whole_forward(self, **given)
        out.logits = out.logits * 2
        return out

    for kind, forward, calls in ((layer, halved, 0), (whole, doubled, 1)):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "forward", forward)
            _assert_same(theirs, fast, given)
        assert _fast(fast).calls == calls
    _assert_same(theirs, fast, given, given["attention_mask"].bool())
    assert _fast(fast).calls == 2


def test_labels_at_padding_are_counted():
    theirs, fast = _pair("bert", "BertForTokenClassification")
    given = padded(theirs.config)
    given["labels"] = torch.ones_like(given["input_ids"])
    _assert_same(theirs, fast, given)
    assert _fast(fast).calls == 1


def test_a_head_that_reads_padding():
    class Recurrent(nn.LSTM):
        def forward(self, input: Tensor) -> Any:
            return super().forward(input)[0].contiguous()

    theirs, _ = _pair("bert", "BertForTokenClassification")
    given = _given(theirs, "BertForTokenClassification")
    theirs.classifier = Recurrent(16, 3, batch_first=True, bidirectional=False)
    fast = ownbert.speed_up(copy.deepcopy(theirs))
    _assert_same(theirs, fast, given)
    seen: list[Tensor] = []
    theirs, fast = _pair("bert", "BertForTokenClassification")
    for model in (theirs, fast):
        model.bert.register_forward_hook(lambda module, args, out: seen.append(out[0]))
        model(**given)
    torch.testing.assert_close(seen[1], seen[0], **CLOSE)
    assert _fast(fast).calls == 1


def test_heads_of_transformers_treat_each_row_by_itself():
    for model_type, architecture in ALL:
        spec = FAMILIES[model_type].architectures[architecture]
        if spec.heads and not spec.decoder:
            assert all(map(_reads_rows, their_model(model_type, architecture).children()))


def test_mobilebert_reads_the_word_of_the_padding():
    theirs, _ = _pair("mobilebert", "MobileBertForTokenClassification")
    theirs.get_input_embeddings().weight.data[theirs.config.pad_token_id] = 3.0
    given = padded(theirs.config)
    _assert_same(theirs, ownbert.speed_up(copy.deepcopy(theirs)), given)


def test_padding_is_computed_unless_nothing_reads_it():
    class Tagger(nn.Module):
        def __init__(self, encoder: Any) -> None:
            super().__init__()
            self.bert = encoder
            self.lstm = nn.LSTM(16, 4, batch_first=True, bidirectional=True)

        def forward(self, **given: Any) -> Tensor:
            return self.lstm(self.bert(**given).last_hidden_state)[0]

    encoder, _ = _pair("bert", "BertModel")
    torch.manual_seed(0)
    theirs = Tagger(encoder)
    fast = ownbert.speed_up(copy.deepcopy(theirs))
    given = padded(encoder.config)
    _assert_same(theirs, fast, given)
    assert _fast(fast).calls == 1
    ownbert.speed_up(fast, skip_padding=True)
    hidden = fast.bert(**given).last_hidden_state
    mask = given["attention_mask"].bool()
    torch.testing.assert_close(hidden[mask], theirs.bert(**given).last_hidden_state[mask], **CLOSE)
    assert not hidden[~mask].any()


def test_undo_and_copies():
    theirs, fast = _pair("bert", "BertForSequenceClassification")
    plain = copy.deepcopy(theirs)
    given = padded(theirs.config)
    assert inspect.signature(fast.forward) == inspect.signature(theirs.forward)
    copied = copy.deepcopy(fast)
    with torch.no_grad():
        copied.bert.encoder.layer[0].output.dense.weight.mul_(2)
        plain.bert.encoder.layer[0].output.dense.weight.mul_(2)
    _assert_same(plain, copied, given)
    _assert_same(theirs, fast, given)
    assert _fast(copied).calls == 1
    read = pickle.loads(pickle.dumps(fast))
    assert read.forward.__self__ is read
    _assert_same(theirs, read, given)
    _assert_same(theirs, ownbert.speed_up(read), given)
    assert _fast(read).calls == 1
    assert fast.state_dict().keys() == theirs.state_dict().keys()
    calls = _fast(fast).calls
    assert ownbert.speed_up(fast, undo=True) is fast
    assert vars(fast).keys() == vars(theirs).keys()
    assert vars(fast.bert).keys() == vars(theirs.bert).keys()
    assert not any(module in _encoders for module in fast.modules())
    _assert_same(theirs, fast, given)
    assert calls == 1


def test_replicas_of_data_parallel_compute_with_their_own_parameters():
    theirs, fast = _pair("bert", "BertModel")
    replica = fast._replicate_for_data_parallel()
    assert "forward" not in vars(replica)
    assert "forward" in vars(fast)
    given = padded(theirs.config)
    torch.testing.assert_close(nn.DataParallel(fast)(**given)[0], theirs(**given)[0], **CLOSE)


def test_saved_folders_are_equal(tmp_path: Path):
    theirs, fast = _pair("bert", "BertForMaskedLM")
    theirs.save_pretrained(tmp_path / "theirs")
    fast.save_pretrained(tmp_path / "fast")
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "fast").iterdir())
    for name in names:
        ours, expected = ((tmp_path / kind / name).read_bytes() for kind in ("fast", "theirs"))
        assert ours == expected


def test_dropout_in_training():
    """The mean of many passes is that of Transformers, and their spread is similar."""
    theirs = their_model("bert", "BertModel", num_hidden_layers=1).train()
    fast = ownbert.speed_up(copy.deepcopy(theirs))
    given = {name: value[:1].repeat(800, 1) for name, value in padded(theirs.config).items()}
    torch.manual_seed(0)
    with torch.no_grad():
        ours, expected = (model(**given).last_hidden_state for model in (fast, theirs))
    assert _fast(fast).calls == 1
    spread = expected.std(0)
    assert ((ours.mean(0) - expected.mean(0)).abs() < 0.25 * spread).all()
    assert ((ours.std(0) / spread - 1).abs() < 0.25).all()


def test_gradient_checkpointing_and_function_transforms():
    theirs, fast = _pair("bert", "BertModel")
    given = padded(theirs.config)
    parameters = {name: p.detach() for name, p in theirs.named_parameters()}

    def total(parameters: Any, model: Any) -> Tensor:
        return torch.func.functional_call(model, parameters, (), given)[0].square().sum()

    expected, actual = (torch.func.grad(total)(parameters, model) for model in (theirs, fast))
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], **CLOSE)
    embeds = theirs.get_input_embeddings()(given.pop("input_ids")).detach()
    eager = _with_attention(theirs, "eager")
    tangents = []
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(embeds, torch.ones_like(embeds))
        for model in (eager, ownbert.speed_up(copy.deepcopy(eager))):
            out = model(inputs_embeds=dual, **given).last_hidden_state
            tangents.append(forward_ad.unpack_dual(out).tangent)
    assert torch.equal(*tangents)
    given["inputs_embeds"] = embeds
    for model in (theirs, fast):
        model.train().gradient_checkpointing_enable()
    _assert_same(theirs, fast, given)
    assert {*_fast(fast).reasons} == {
        "it is called inside a function transform of torch.func",
        "gradient checkpointing",
    }


def test_what_has_no_encoder_is_refused():
    for wrong in (nn.Linear(2, 2), "bert", None):
        with pytest.raises(InputError):
            ownbert.speed_up(wrong)


def test_explain(capsys: pytest.CaptureFixture[str]):
    theirs, fast = _pair("bert", "BertForSequenceClassification")
    fast(**padded(theirs.config))
    fast(**padded(theirs.config), output_attentions=True)
    assert ownbert.speed_up(fast, explain=True) is fast
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "BertModel: 1 calls by the packed network"
    assert "attention weights" in lines[1]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_loss_alone(model_type: str):
    names = FAMILIES[model_type].architectures.items()
    found = (name for name, spec in names if spec.kinds == ("mlm",) and not spec.decoder)
    architecture = next(found, None)
    if architecture is None or model_type == "xlnet":
        pytest.skip("no head for masked words")
    theirs, fast = _pair(model_type, architecture)
    ownbert.speed_up(fast, loss_only=True)
    given = _given(theirs, architecture)
    given["labels"][:, ::2] = -100
    for model in (theirs, fast):
        model.train()
    _, (loss, *_), gradients = _results(theirs, given)
    out, (our_loss, *others), our_gradients = _results(fast, given)
    assert type(out) is type(theirs(**given))
    assert out.logits is None
    assert not others
    torch.testing.assert_close(our_loss, loss, **CLOSE)
    for name, gradient in gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, **CLOSE)
    assert len(fast(**given, return_dict=False)) == 1
    # No label, evaluation, a call without labels, and one that Transformers computes.
    nothing = {**given, "labels": torch.full_like(given["labels"], -100)}
    assert fast(**nothing).loss.isnan()
    assert fast(**nothing).logits is not None
    given["attention_mask"] = given["attention_mask"].float() * 1.5
    torch.testing.assert_close(fast(**given).loss, theirs(**given).loss, **CLOSE)
    labels = given.pop("labels")
    assert fast(**given).logits.shape == (*labels.shape, 37)
    assert fast.eval()(**given, labels=labels).logits.shape == (*labels.shape, 37)


@pytest.mark.parametrize(("model_type", "architecture"), BASES)
def test_autocast_is_as_precise_as_in_transformers(model_type: str, architecture: str):
    theirs, fast = _pair(model_type, architecture)
    given = padded(theirs.config)
    exact = _values(theirs, given)
    for training in (False, True):
        found = []
        for model in (theirs, fast):
            model.train(training)
            for _ in range(2):  # the second time with packed matrices
                with torch.autocast("cpu", torch.bfloat16):
                    values = _values(model, given)
            found.append(values)
        for value, expected, ours in zip(exact, *found, strict=False):
            assert ours.dtype == expected.dtype
            size = value.abs().max()
            error, our_error = ((x - value).abs().max() / size for x in (expected, ours))
            assert our_error < 2 * error + 0.01
    assert _fast(fast).calls == (0 if model_type == "modernbert" else 4)


def test_the_loss_alone_of_a_large_vocabulary():
    """The head and the loss are computed as in pretraining."""
    theirs, fast = _pair("bert", "BertForMaskedLM", vocab_size=30_000)
    ownbert.speed_up(fast, loss_only=True)
    given = {**padded(theirs.config), "labels": padded(theirs.config)["input_ids"]}
    given["labels"] = torch.where(given["attention_mask"].bool(), given["labels"], -100)
    for model in (theirs, fast):
        model.train()
    parameters = {name: p.detach() for name, p in theirs.named_parameters()}
    for precision in (torch.float32, torch.bfloat16):
        found = []
        for model in (theirs, fast):
            with torch.autocast("cpu", precision, enabled=precision == torch.bfloat16):
                found.append(_results(model, given)[1:])
        ((expected, *_), gradients), ((loss, *_), ours) = found
        close = CLOSE if precision == torch.float32 else {"atol": 0.02, "rtol": 0.02}
        torch.testing.assert_close(loss, expected, **close)
        for name, gradient in gradients.items():
            torch.testing.assert_close(ours[name], gradient, **close)

    def total(parameters: Any, model: Any) -> Tensor:
        return torch.func.functional_call(model, parameters, (), given)["loss"]

    expected, actual = (torch.func.grad(total)(parameters, model) for model in (theirs, fast))
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], **CLOSE)
    losses = [model.bfloat16()(**given).loss for model in (theirs, fast)]
    assert losses[0].dtype == losses[1].dtype
