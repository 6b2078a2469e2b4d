"""The arguments of a forward pass one by one, against Transformers 4.57.6."""

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

from ownbert.exceptions import InputError  # noqa: E402
from support.padded_models import close, padded, pair  # noqa: E402

KINDS = ["absolute", "relative_key", "relative_key_query"]
HOLES = torch.tensor([[1, 0, 1, 1, 1, 0, 1, 0, 0], [0, 0, 1, 1, 0, 1, 1, 1, 1], [1] * 9])


def both(theirs: Any, ours: Any, **given: Any) -> tuple[Any, Any]:
    with torch.no_grad():
        return theirs(**given), ours(**given)


@pytest.mark.parametrize("mask", ["right", "left", "holes", "pairs", "none", "a row of nothing"])
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        *(("BertModel", {"position_embedding_type": kind}) for kind in KINDS),
        ("DebertaV2Model", {"share_att_key": True, "position_biased_input": True}),
        ("DebertaV2Model", {"share_att_key": False}),
        ("ModernBertModel", {}),
        ("T5EncoderModel", {}),
    ],
)
def test_masks(architecture: str, changes: dict[str, Any], mask: str):
    if mask == "pairs" and architecture != "BertModel":
        return  # Transformers fails there
    theirs, ours = pair(architecture, **changes)
    given = padded(ours.model_type)
    if mask == "left":
        given["attention_mask"] = given["attention_mask"].flip(1)
    elif mask == "holes":
        given["attention_mask"] = HOLES
    elif mask == "pairs":
        draw = torch.rand(3, 9, 9, generator=torch.Generator().manual_seed(5))
        given["attention_mask"] = (draw < 0.6).long()
        given["attention_mask"][1, 4] = 0
    elif mask == "a row of nothing":
        given["attention_mask"][1] = 0
    elif mask == "none":
        del given["attention_mask"]
    expected, found = both(theirs, ours, **given)
    seen = given.get("attention_mask", torch.ones(3, 9))
    close(
        found.last_hidden_state, expected.last_hidden_state, seen.bool() if seen.ndim == 2 else None
    )
    if "pooler_output" in expected:
        close(found.pooler_output, expected.pooler_output)


@pytest.mark.parametrize("architecture", ["BertModel", "RobertaModel", "MobileBertModel"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_every_place_where_that_is_asked_for(architecture: str, side: str):
    theirs, ours = pair(architecture)
    given = padded(ours.model_type)
    if side == "left":
        given = {name: value.flip(1) for name, value in given.items()}
    ours.padded_call.skips_padding = False
    extra = {"output_attentions": True, "output_hidden_states": True}
    expected, found = both(theirs, ours, **given, **extra)
    close(found.to_tuple(), expected.to_tuple())


@pytest.mark.parametrize("architecture", ["BertModel", "RobertaModel", "DistilBertModel"])
def test_embeddings_in_the_place_of_ids(architecture: str):
    theirs, ours = pair(architecture)
    given = padded(ours.model_type)
    ids = given.pop("input_ids")
    given["inputs_embeds"] = theirs.get_input_embeddings()(ids).detach()
    expected, found = both(theirs, ours, **given)
    close(found[0], expected[0], given["attention_mask"].bool())
    for wrong, message in [
        ({**given, "input_ids": ids}, "not both"),
        ({}, "give either input_ids or inputs_embeds"),
        ({"input_ids": ids[0]}, r"input_ids has shape \(9,\)"),
    ]:
        with pytest.raises(InputError, match=message):
            ours(**wrong)


@pytest.mark.parametrize("architecture", ["BertModel", "RobertaModel", "AlbertModel"])
def test_positions_that_are_given(architecture: str):
    theirs, ours = pair(architecture)
    given = padded(ours.model_type)
    given["position_ids"] = torch.arange(12, 3, -1)[None]
    expected, found = both(theirs, ours, **given)
    close(found[0], expected[0], given["attention_mask"].bool())


def test_padding_counts_for_roberta_by_its_id_alone():
    theirs, ours = pair("RobertaModel")
    ids = torch.tensor([[5, 1, 7, 8, 1, 1], [9, 8, 7, 6, 5, 4]])
    expected, found = both(theirs, ours, input_ids=ids)
    close(found.to_tuple(), expected.to_tuple())


@pytest.mark.parametrize("name", ["BertModel", "AlbertModel", "DistilBertModel", "ElectraModel"])
def test_head_masks(name: str):
    theirs, ours = pair(name)
    given, layers = padded(ours.model_type), ours.config.num_hidden_layers
    keep = given["attention_mask"].bool()
    draw = torch.Generator().manual_seed(3)
    one = torch.rand(4, generator=draw)
    for mask in (one, torch.rand(layers, 4, generator=draw), (one > 0.5).float()):
        expected, found = both(theirs, ours, **given, head_mask=mask, output_attentions=True)
        close(found[0], expected[0], keep)
        close(found.attentions, expected.attentions, keep)
    each = torch.rand(layers, 3, 4, generator=draw)
    expected, found = both(theirs, ours, **given, head_mask=each[..., None, None])
    close(found[0], expected[0], keep)
    close(ours(**given, head_mask=each)[0], found[0])
    with pytest.raises(InputError, match=r"head_mask has shape \(5,\); it must be one of \(4,\)"):
        ours(**given, head_mask=torch.ones(5))


def test_attentions_of_chosen_layers():
    _, ours = pair("BertModel", num_hidden_layers=4)
    given = padded()
    whole = ours(**given, output_attentions=True).attentions
    some = ours(**given, output_attentions=[1, -1]).attentions
    assert [w is None for w in some] == [True, False, True, False]
    close((some[1], some[3]), (whole[1], whole[3]))
    keep = given["attention_mask"].float()
    close(whole[0].sum(-1), keep[:, None].expand(-1, 4, -1))
    assert ours(**given, output_attentions=False).attentions is None
    for wrong in (4, "last"):
        with pytest.raises(InputError, match=rf"requests layer {wrong!r}; the layers are 0\.\.3"):
            ours(**given, output_attentions=[wrong])


def test_inputs_that_are_too_long():
    _, ours = pair("BertModel")
    with pytest.raises(InputError, match="the input is 41 tokens long, the model has 40 positions"):
        ours(torch.full((1, 41), 7))
    _, ours = pair("RobertaModel")
    assert ours(torch.full((1, 38), 7)).last_hidden_state.shape == (1, 38, 32)
    with pytest.raises(InputError, match="position 40 is beyond the table of 40 positions"):
        ours(torch.full((1, 39), 7))
    _, ours = pair("BertModel", position_embedding_type="relative_key")
    assert ours(torch.full((1, 60), 7)).last_hidden_state.shape == (1, 60, 32)


@pytest.mark.parametrize("problem", [None, "regression", "multi_label_classification"])
def test_what_labels_mean(problem: str | None):
    theirs, ours = pair("BertForSequenceClassification", num_labels=3, problem_type=problem)
    labels = torch.tensor([0, 2, 1]) if problem is None else torch.rand(3, 3)
    expected, found = both(theirs, ours, **padded(), labels=labels)
    close(found.loss, expected.loss)
    assert ours.padded_call.config.problem_type == theirs.config.problem_type


def test_a_label_at_padding_counts_as_there():
    theirs, ours = pair("BertForTokenClassification", num_labels=3)
    labels = torch.ones(3, 9, dtype=torch.long)
    expected, found = both(theirs, ours, **padded(), labels=labels)
    close(found.loss, expected.loss)
    close(found.logits, expected.logits)
    close(ours(**padded(), labels=labels.flatten()).loss, expected.loss)


def test_compiled():
    _, ours = pair("BertForSequenceClassification")
    around = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())

    def scores(**given):
        return around(ours(**given).logits)

    compiled = torch.compile(ours, backend="eager"), torch.compile(scores, backend="eager")
    for length in (9, 7):
        given = padded(size=(3, length))
        expected = ours(**given).logits
        assert torch.equal(compiled[0](**given).logits, expected)
        close(compiled[1](**given), around(expected))
    compiled[0](**given).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in ours.heads.parameters())


def test_a_packed_batch_goes_in_as_well():
    from ownbert.batches.batch import from_padded

    _, ours = pair("BertModel")
    given = padded()
    batch, _ = from_padded(given["input_ids"], given["attention_mask"])
    close(ours(batch).hidden, ours(**given).last_hidden_state[given["attention_mask"].bool()])


@pytest.mark.parametrize(("layers", "groups"), [(5, 3), (18, 14)])
def test_head_masks_where_groups_of_layers_are_uneven(layers: int, groups: int):
    theirs, ours = pair("AlbertModel", num_hidden_layers=layers, num_hidden_groups=groups)
    given = padded("albert")
    mask = torch.rand(layers, 4, generator=torch.Generator().manual_seed(6))
    expected, found = both(theirs, ours, **given, head_mask=mask)
    close(found[0], expected[0], given["attention_mask"].bool())
