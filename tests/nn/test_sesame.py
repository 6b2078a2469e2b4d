"""SesameBERT's layer gate and blur against the equations in NumPy, one sequence at a time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ownbert
from ownbert.batches.batch import Batch, Example, pack
from ownbert.batches.layout import make_layout
from ownbert.checkpoint import load, save
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import Mobile
from ownbert.exceptions import InputError
from ownbert.exporting.padded import PaddedModel
from ownbert.nn.model import Model
from ownbert.nn.multihead import Attention
from ownbert.nn.variants.sesame import LayerGate, blur
from support.floats import assert_close
from support.networks import SMALL

CONFIG = replace(
    SMALL,
    vocab_size=20,
    hidden_size=12,
    num_hidden_layers=6,
    num_attention_heads=3,
    intermediate_size=18,
    attention_probs_dropout_prob=0.0,
    hidden_dropout_prob=0.0,
)
LENGTHS = (5, 1, 8, 2)
KINDS = ["last", "sum"]


def made(*heads: str | HeadSpec, **changes: Any) -> Model:
    torch.manual_seed(0)
    model = Model(replace(CONFIG, **changes), heads, labels=("a", "b"))
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


def batch(lengths: tuple[int, ...] = LENGTHS) -> Batch:
    rng = np.random.default_rng(1)
    ids = [rng.integers(5, 20, n) for n in lengths]
    return pack([Example(own, np.zeros_like(own)) for own in ids])


def blurred(rows: np.ndarray, sigma: float) -> Any:
    """Each row and its neighbours by a Gaussian at -1, 0 and 1; the ends are repeated."""
    kernel = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * sigma**2))
    kernel /= kernel.sum()
    padded = np.pad(rows, ((1, 1), *[(0, 0)] * (rows.ndim - 1)), mode="symmetric")
    return sum(k * padded[i : i + len(rows)] for i, k in enumerate(kernel))


def gated(layers: list[np.ndarray], gate: LayerGate, kind: str) -> Any:
    """The output for one sequence, from its layers (S, D)."""
    weights = {name: p.detach().double().numpy() for name, p in gate.named_parameters()}
    squeezed = np.array([layer.mean() for layer in layers])
    inner = np.maximum(weights["down.weight"] @ squeezed + weights["down.bias"], 0)
    gates = 1 / (1 + np.exp(-(weights["up.weight"] @ inner + weights["up.bias"])))
    if kind == "last":
        return layers[-1] * gates[-1]
    return sum(layer * g for layer, g in zip(layers, gates, strict=True))


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_the_blur_is_a_gaussian_of_each_sequence(sigma: float):
    torch.manual_seed(0)
    rows = torch.randn(sum(LENGTHS), 3, 4, dtype=torch.float64)
    found = blur(rows, make_layout(LENGTHS), sigma).numpy()
    expected = [blurred(part.numpy(), sigma) for part in rows.split(LENGTHS)]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-12)


def test_the_blur_of_the_paper():
    """Of 3 tokens with sigma 0.3: what exp(-1 / 0.18) = 0.00387 leaves of the neighbours."""
    found = blur(torch.tensor([1.0, 0.0, 0.0, 4.0]), make_layout([3, 1]), 0.3)
    assert_close(found, torch.tensor([0.996164, 0.003836, 0.0, 4.0]), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gate_is_that_of_the_paper(kind: str):
    torch.manual_seed(0)
    gate = LayerGate(replace(CONFIG, layer_gate=kind))
    gate.initialize()
    assert gate.down.weight.shape == (2, 6)
    layers = torch.randn(6, sum(LENGTHS), 12)
    found = gate(list(layers), make_layout(LENGTHS))
    parts = [part.double().numpy() for part in layers.split(LENGTHS, 1)]
    expected = np.concatenate([gated(list(part), gate, kind) for part in parts])
    assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_encoder_follows_the_equations(kind: str):
    """Layers from ``keep_hidden``, and the attention of the first one by NumPy."""
    model = made("mlm", layer_gate=kind, attention_blur=0.7)
    encoder, given = model.encoder, batch()
    gate, attention, seen = encoder.gate, encoder.schedule()[0][0].attention, []
    assert isinstance(gate, LayerGate)
    assert isinstance(attention, Attention)
    hook = attention.output.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        hidden, states = encoder(given, keep_hidden=True)
    hook.remove()
    parts = [part.double().numpy() for part in torch.stack(states[1:]).split(LENGTHS, 1)]
    expected = [gated(list(part), gate, kind) for part in parts]
    assert_close(hidden, np.concatenate(expected))
    with torch.no_grad():
        q, k, v = (part.double().numpy() for part in attention.project(states[0]))
    outputs, first = [], 0
    for length in LENGTHS:
        rows = slice(first, first + length)
        scores = np.einsum("ihk,jhk->hij", q[rows], k[rows]) / 2
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        out = np.einsum("hij,jhk->ihk", weights, v[rows])
        outputs.append(blurred(out.reshape(length, -1), 0.7))
        first += length
    assert_close(seen[0], np.concatenate(outputs))


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_in_the_batch_change_nothing(kind: str):
    model = made("mlm", layer_gate=kind, attention_blur=1.0)
    given = batch()
    with torch.no_grad():
        together = model.encoder(given)[0].split(LENGTHS)
        ids = given.token_ids.split(LENGTHS)
        for number in range(len(LENGTHS)):
            own = ids[number].numpy()
            alone = model.encoder(pack([Example(own, np.zeros_like(own))]))[0]
            assert_close(together[number], alone)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str):
    torch.manual_seed(0)
    gate, layout = LayerGate(replace(CONFIG, layer_gate=kind)).double(), make_layout((3, 1, 2))
    layers = torch.randn(6, 6, 4, dtype=torch.float64, requires_grad=True)

    def forward(layers: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        named = dict(zip(dict(gate.named_parameters()), parameters, strict=True))
        rows = [blur(layer, layout, 0.8) for layer in layers]
        return torch.func.functional_call(gate, named, (rows, layout))

    assert torch.autograd.gradcheck(forward, (layers, *gate.parameters()))


def test_recomputed_activations_change_no_gradient():
    model = made("mlm", layer_gate="sum", attention_blur=0.8).train()
    grads = []
    for again in (False, True):
        model.encoder.gradient_checkpointing = again
        model.zero_grad()
        model.encoder(batch())[0].pow(2).sum().backward()
        grads.append(model.encoder.embeddings.word.weight.grad)
    assert_close(grads[0], grads[1])


FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "albert": {"embedding_size": 8, "num_hidden_groups": 2},
    "mobilebert": {"embedding_size": 8, "mobile": Mobile(intra_bottleneck_size=6)},
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_saved_and_loaded(tmp_path: Path, model_type: str, transformers: Any):
    torch.manual_seed(0)
    changes: dict[str, Any] = FAMILIES[model_type]
    if model_type == "albert":
        changes = {**changes, "scale_relative_positions": False, "drop_feed_forward_output": False}
    config = replace(CONFIG, layer_gate="sum", attention_blur=0.3, **changes)
    model = Model(config, ["mlm"], model_type=model_type).eval()
    save(model, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["model_type"] == f"ownbert-{model_type}"
    assert (values["ownbert_layer_gate"], values["ownbert_attention_blur"]) == ("sum", 0.3)
    again = load(tmp_path)
    assert again.config == config
    with torch.no_grad():
        assert torch.equal(again.encoder(batch())[0], model.encoder(batch())[0])
    # Transformers cannot compute it, and must not try.
    with pytest.raises(ValueError, match="ownbert"):
        transformers.AutoConfig.from_pretrained(tmp_path)


def test_the_classes_of_transformers_api_compute_it(tmp_path: Path):
    model = made("classification", layer_gate="last", attention_blur=0.4)
    save(model, tmp_path / "model")
    theirs: Any = ownbert.BertForSequenceClassification.from_pretrained(tmp_path / "model")
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids[mask] = batch().token_ids
    with torch.no_grad():
        expected = model(batch()).logits["classification"]
        found = theirs(ids, mask.long()).logits
    assert_close(found, expected)
    theirs.save_pretrained(tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "again")(batch()).logits["classification"], expected)
    with pytest.raises(InputError, match="pad on the right"):
        theirs(ids.flip(1), mask.flip(1).long())


@pytest.mark.parametrize("kind", KINDS)
def test_the_padded_graph_for_export(kind: str):
    model = made("classification", layer_gate=kind, attention_blur=0.9)
    mask = torch.arange(10) < torch.tensor(LENGTHS)[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = batch().token_ids
    with torch.no_grad():
        found = PaddedModel(model)(ids, mask.long(), torch.zeros_like(ids))["logits"]
        assert_close(found, model(batch()).logits["classification"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_gate": "first"}, "layer_gate 'first' is not known; use one of last, sum"),
        ({"layer_gate": "sum", "norm_first": True, "final_norm": True}, "final_norm"),
        ({"layer_gate": "sum", "is_decoder": True}, "is_decoder"),
        ({"attention_blur": 0.3, "is_decoder": True}, "is_decoder"),
        ({"attention_blur": 0}, "attention_blur is 0; it must be more than 0"),
        ({"attention_blur": "wide"}, "must be a number"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict, words: str):
    with pytest.raises(InputError, match=words):
        replace(CONFIG, **changes)
