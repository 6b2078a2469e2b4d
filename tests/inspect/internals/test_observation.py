"""What is kept of a forward pass is what the model computed, and it fits into a page."""

import json
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

from ownbert import Explainer, InputError
from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import load
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Mobile
from ownbert.inspect.internals.observation import (
    HeadChoice,
    HeadWeights,
    Observation,
    attention_maps,
    observation_of_text,
    observe,
)
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from support.cli import refusal, run_cli
from support.tiny import SPECIAL, change_config, made

WORDS = [f"w{i}" for i in range(20)]
TOKENIZER = Tokenizer.blank([*SPECIAL, *WORDS])


def small(**changes) -> Model:
    torch.manual_seed(0)
    sizes = {"vocab_size": 25, "hidden_size": 24, "intermediate_size": 40}
    sizes |= {"num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64}
    model = Model(EncoderConfig(**{**sizes, **changes}), ["mlm"])
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    return model.eval()


def example(*lengths: int) -> Example:
    ids = np.concatenate([np.r_[2, 5 + np.arange(n - 2) % 20, 3] for n in lengths])
    parts = lengths if len(lengths) > 1 else None
    return Example(ids, np.zeros_like(ids), parts=parts)


def unpacked(weights: HeadWeights, packed: str, most: int) -> np.ndarray:
    """(S, S) as a page reads them; what is not there is zero."""
    raw = np.frombuffer(zlib.decompress(b64decode(packed)), np.uint8)
    size = len(weights.values)
    most = min(most, size)
    values = raw[: size * most].reshape(size, most)
    keys = np.tile(np.arange(size), (size, 1))
    if most < size:
        low, high = raw[size * most :].reshape(2, size, most).astype(int)
        keys = np.cumsum(low + 256 * high, 1)
    found = np.zeros((size, size))
    np.put_along_axis(found, keys, weights.peak * (values / 255) ** 2, 1)
    return found


def attentions(model: Model, own: Example) -> dict[int, list[torch.Tensor]]:
    batch = pack([own])
    context = model.encoder.plain_context(batch)
    layers = frozenset(range(len(model.encoder.schedule())))
    with torch.no_grad():
        return model(batch, [], context=replace(context, keep=layers)).attentions


KINDS = {
    "plain": {},
    "rotary decoder": {"is_decoder": True, "position_embedding_type": "rotary"},
    "pruned": {"pruned_heads": {1: (0, 2)}},
    "shared": {"num_hidden_groups": 1},
    "pre-norm": {"norm_first": True, "final_norm": True},
    "mobile": {"embedding_size": 8, "mobile": Mobile(intra_bottleneck_size=12)},
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_the_weights_are_those_of_the_model(changes: dict):
    model, own = small(**changes), example(17, 9)
    found = observe(model, TOKENIZER, own)
    expected = attentions(model, own)
    heads = sum(len(kept) for kept in found.kept)
    assert len(found.weights) == len(found.packed) == 2 * heads
    assert found.most == 17  # all of them
    for weights, packed in zip(found.weights, found.packed, strict=True):
        index = found.kept[weights.layer].index(weights.head)
        theirs = expected[weights.layer][weights.sequence][index].numpy()
        error = np.abs(unpacked(weights, packed, found.most) - theirs)
        assert error.max() <= weights.peak / 255
    assert found.norms.shape == (4, 26)
    assert np.isnan(found.written).sum() == (2 if "pruned_heads" in changes else 0)


def test_of_many_weights_the_largest_are_kept():
    model, own, budget = small(), example(64), 12 * 64 * 24
    found = observe(model, TOKENIZER, own, budget=budget)
    assert 8 <= found.most < 64
    assert sum(map(len, found.packed)) <= budget
    expected = attentions(model, own)
    for weights, packed in zip(found.weights, found.packed, strict=True):
        theirs = expected[weights.layer][0][weights.head].numpy()
        ours = unpacked(weights, packed, found.most)
        kept = ours > 0
        assert np.abs(ours - theirs)[kept].max() <= weights.peak / 255
        least = np.sort(theirs, 1)[:, [-found.most]] + weights.peak / 100
        assert (theirs <= least)[~kept].all()


def test_where_weights_go():
    model = small()
    (first, *_) = observe(model, TOKENIZER, example(12)).weights
    theirs = attentions(model, example(12))[0][0][0].numpy()
    expected = [
        np.diagonal(theirs).mean(),
        np.diagonal(theirs, -1).mean(),
        np.diagonal(theirs, 1).mean(),
        theirs[:, 0].mean(),
        theirs[:, -1].mean(),
    ]
    assert first.shares == pytest.approx(expected, abs=1e-4)
    assert first.thumbnail.shape == (12, 12)
    assert np.unravel_index(first.thumbnail.argmax(), (12, 12)) == np.unravel_index(
        theirs.argmax(), (12, 12)
    )


def test_what_a_head_writes_is_what_remains_when_the_others_are_masked():
    model, own = small(), example(10)
    found = observe(model, TOKENIZER, own)
    batch, outputs = pack([own]), []
    attention = model.encoder.blocks[0].attention
    attention.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    for head in range(4):
        mask = torch.zeros(3, 4)
        mask[0, head] = 1
        with torch.no_grad():
            model(batch, [], context=replace(model.encoder.plain_context(batch), head_mask=mask))
        norm = (outputs[-1] - attention.output.bias).norm(dim=-1).mean()
        assert found.written[0, head] == pytest.approx(norm.item(), rel=1e-4)


def test_the_last_layer_answers_as_the_model_does(tmp_path: Path):
    cases = {
        "classification": ({"ownbert_task": {"name": "classify"}}, "a b c"),
        "tokens": ({}, "a b c"),
        "span": ({}, {"question": "a", "context": "b c"}),
        "choice": ({}, ("a", ["b", "c", "d"])),
        "mlm": ({}, ["a [MASK] c"]),
    }
    for head, (changes, row) in cases.items():
        made(tmp_path / head, head)
        change_config(tmp_path / head, **changes)
        explainer = Explainer(tmp_path / head)
        ((encoded, explanations),) = explainer.explained(row, method="leave_one_out")
        found = explainer.observe(encoded)
        assert len(found.answers) == len(explanations)
        for answers, explanation in zip(found.answers, explanations, strict=True):
            assert answers.name == explanation.target
            assert len(answers.values) == 3
            if head != "span":  # of which the page shows a score of its own
                assert answers.values[-1] == pytest.approx(explanation.probability, abs=1e-5)
            if head in ("classification", "mlm"):
                assert answers.candidates[-1][0][0] == explanation.target
                assert answers.settled is not None
                names = [layer[0][0] for layer in answers.candidates]
                assert set(names[answers.settled :]) == {explanation.target}
                assert answers.settled == 0 or names[answers.settled - 1] != explanation.target


def test_masked_words_of_a_traced_text():
    model = small()
    found = observation_of_text(model, TOKENIZER, [2, 6, 4, 8, 4, 3])
    with torch.no_grad():
        ids = np.array([2, 6, 4, 8, 4, 3])
        logits = model(pack([Example(ids, np.zeros_like(ids))]), ["mlm"]).logits["mlm"]
    for answers, position in zip(found.answers, (2, 4), strict=True):
        likely = logits[position].softmax(-1)
        assert answers.name == TOKENIZER.tokens([int(likely.argmax())])[0]
        assert answers.values[-1] == pytest.approx(float(likely.max()), abs=1e-5)
    assert observation_of_text(model, TOKENIZER, [2, 6, 3]).answers == ()


def test_what_has_no_room():
    model, own = small(), example(40)
    limited = observe(model, TOKENIZER, own, budget=3 * 40 * 40)
    assert limited.layers == (2,)
    assert limited.note == "Only the last 1 of 3 layers fit on the page; choose others with layers."
    assert {weights.layer for weights in limited.weights} == {2}
    assert limited.norms.shape == (4, 40)
    with pytest.raises(InputError, match="3 layers is too large for a page; choose 1 of them with"):
        observe(model, TOKENIZER, own, choice=HeadChoice(range(3)), budget=3 * 40 * 40)
    one = observe(model, TOKENIZER, own, choice=HeadChoice(heads=[3]), budget=3 * 40 * 40)
    assert [(w.layer, w.head) for w in one.weights] == [(0, 3), (1, 3), (2, 3)]


def test_the_model_is_as_it_was():
    model = small().train()
    found: Observation = observe(model, TOKENIZER, example(10))
    assert len(found.weights) == 12
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_mistakes_on_the_command_line(tmp_path: Path):
    made(tmp_path / "model", "classification")
    page = tmp_path / "page.html"
    for options, message in (
        (["--layers", "2"], "there is no layer 2; the layers are 0..1"),
        (["--layers", "0", "--heads", "0,5"], "there is no head 5 in these layers; they have 0-1"),
        (["--layers", "1-0"], "--layers is '1-0'; it must be numbers, as in 0,3-5"),
        (["--heads", "all"], "--heads is 'all'; it must be numbers, as in 0,3-5"),
        (["--class", "lion"], "there is no 'lion'; choose one of zebra, ant, 7"),
    ):
        found = refusal("explain", tmp_path / "model", "a b", "--html", page, *options)
        assert found == f"error: {message}\n"
    nothing = refusal("explain", tmp_path / "model", "", "--html", page)
    assert nothing.startswith("error: there is nothing to show on a page: no words")
    alone = refusal("explain", tmp_path / "model", "a b", "--layers", "1")
    assert alone == "error: the option --layers requires --html\n"
    assert not page.exists()
    done = run_cli("explain", tmp_path / "model", "a b", "--layers", "1", "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    (data,) = [
        json.loads(part.split("</script>")[0])
        for part in text.split('<script type="application/json" id="data">')[1:]
    ]
    assert data["inside"][0]["shown"] == [[0, 1, 0], [0, 1, 1]]
    assert text.count('data-weights="0.0.1.') == 2


def maps_example(*sequences: list[int]) -> Example:
    ids = np.asarray([i for own in sequences for i in own])
    return Example(ids, 0 * ids, parts=tuple(map(len, sequences)) if len(sequences) > 1 else None)


def test_weights_are_those_of_transformers(tmp_path: Path):
    made(tmp_path)
    theirs = BertModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    model = load(tmp_path)
    chosen = HeadChoice([-1, 0, 1], [1]).of(model)
    assert chosen == {1: [1], 0: [1]}  # -1 is 1
    sequences = [2, 5, 6, 3], [2, 7, 3]
    found = attention_maps(model, maps_example(*sequences), chosen)
    for ids, own in zip(sequences, found, strict=True):
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids]), output_attentions=True).attentions
        assert [*own] == [1, 0]
        for layer, weights in own.items():
            np.testing.assert_allclose(weights[0], expected[layer][0, 1].numpy(), atol=1e-5)


def test_pruned_heads_are_left_out(tmp_path: Path):
    model = made(tmp_path)
    (whole,) = attention_maps(model, maps_example([2, 5, 3]), HeadChoice([0]).of(model))
    model.prune_heads({0: [0]})
    chosen = HeadChoice([0, 1]).of(model)
    assert chosen == {0: [1], 1: [0, 1]}
    (pruned,) = attention_maps(model, maps_example([2, 5, 3]), chosen)
    np.testing.assert_allclose(pruned[0], whole[0][1:], atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "heads", "message"),
    [
        ([2], None, "there is no layer 2; the layers are 0..1"),
        ([-3], None, "there is no layer -3"),
        ([0], [2], "there is no head 2 in these layers; they have 0-1"),
        ([0], [-1], "there is no head -1"),
    ],
)
def test_what_is_not_there_is_refused(layers, heads, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        HeadChoice(layers, heads).of(made(tmp_path))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (HeadChoice([0, 3]), r"there is no layer 3; the layers are 0\.\.2"),
        (HeadChoice([1], [2]), "no head 2 in these layers; they have 1, 3"),
    ],
)
def test_pruned_heads_are_not_observed(choice: HeadChoice, message: str):
    with pytest.raises(InputError, match=message):
        observe(small(pruned_heads={1: (0, 2)}), TOKENIZER, example(10), choice=choice)
