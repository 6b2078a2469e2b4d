"""The same numbers as Transformers from the same random weights, in both directions."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ownbert.checkpoint import load, save
from support.floats import assert_close
from support.parity_models import assert_same, our_outputs, packed, their_outputs, transformers
from support.parity_models import their_model as model_of_family

LENGTHS = (20, 1, 7, 13)
WIDTH, VOCAB = max(LENGTHS), 37
ARCHITECTURES = [
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
]


def their_model(architecture: str, **settings):
    return model_of_family("bert", architecture, max_position_embeddings=24, **settings)


def padded(side: str = "right") -> dict[str, Tensor]:
    """Rows of mixed lengths with two token types; something stands where the padding is."""
    generator = torch.Generator().manual_seed(1)
    place = torch.arange(WIDTH)[None]
    lengths = torch.tensor(LENGTHS)[:, None]
    keep = {
        "right": place < lengths,
        "left": place >= WIDTH - lengths,
        "holes": (place < lengths) & ((place % 3 != 1) | (lengths == 1)),
    }
    return {
        "input_ids": torch.randint(0, VOCAB, (len(LENGTHS), WIDTH), generator=generator),
        "attention_mask": keep[side].long(),
        "token_type_ids": (place >= lengths // 2).long(),
    }


@pytest.mark.parametrize("side", ["right", "left", "holes"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_outputs_of_every_architecture(tmp_path: Path, architecture: str, side: str):
    model, given = their_model(architecture), padded(side)
    model.save_pretrained(tmp_path)
    ours, theirs = our_outputs(load(tmp_path), given), their_outputs(model, given)
    if side == "left":
        # They pool the first place even where it is padding, we the first token: the same in
        # the one row without padding.
        for name in ours.keys() & {"pooled", "nsp", "classification"}:
            ours[name], theirs[name] = ours[name][0], theirs[name][0]
    assert_same(ours, theirs)


@pytest.mark.parametrize("activation", ["gelu_new", "relu", "silu"])
def test_activations(tmp_path: Path, activation: str):
    model, given = their_model("BertForPreTraining", hidden_act=activation), padded()
    model.save_pretrained(tmp_path)
    theirs = their_outputs(model, given)
    assert_same(our_outputs(load(tmp_path), given), theirs)
    plain = their_outputs(their_model("BertForPreTraining"), given)
    assert not torch.allclose(plain["hidden"], theirs["hidden"], atol=1e-5)


def test_logits_at_masked_positions_only(tmp_path: Path):
    model, given = their_model("BertForPreTraining"), padded()
    model.save_pretrained(tmp_path)
    rows = torch.tensor([0, 3, 19, 20, 25, 40])
    with torch.no_grad():
        out = load(tmp_path)(replace(packed(given), masked_positions=rows))
    expected = their_outputs(model, given)["mlm"][rows]
    assert_close(out.logits["mlm"], expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_we_save_is_what_they_saved(tmp_path: Path, architecture: str):
    """What they compute from it is compared for every family (``test_families``)."""
    their_model(architecture).save_pretrained(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    first, second = (load_file(tmp_path / w / "model.safetensors") for w in ("theirs", "ours"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_automatic_classes_find_it(tmp_path: Path):
    their_model("BertForSequenceClassification").save_pretrained(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    auto = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert type(auto).__name__ == "BertForSequenceClassification"
    assert auto.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_widened(tmp_path: Path, dtype: torch.dtype):
    model = their_model("BertModel").to(dtype)
    model.save_pretrained(tmp_path)
    given = padded()
    assert_same(our_outputs(load(tmp_path), given), their_outputs(model.float(), given))


def test_gradients_are_theirs(tmp_path: Path):
    model, given = their_model("BertForPreTraining"), padded()
    model.save_pretrained(tmp_path)
    labels = torch.full_like(given["input_ids"], -100)
    places = torch.tensor([[0, 3], [0, 19], [1, 0], [3, 5], [3, 12]])
    labels[tuple(places.T)] = torch.tensor([7, 8, 9, 10, 11])
    sentence = torch.tensor([0, 1, 1, 0])
    model(**given, labels=labels, next_sentence_label=sentence).loss.backward()

    ours = load(tmp_path)
    rows = torch.tensor([3, 19, 20, 33, 40])
    out = ours(replace(packed(given), masked_positions=rows))
    loss = torch.nn.functional.cross_entropy(out.logits["mlm"], torch.tensor([7, 8, 9, 10, 11]))
    loss = loss + torch.nn.functional.cross_entropy(out.logits["nsp"], sentence)
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    pairs = {
        "bert.embeddings.word_embeddings.weight": ours.encoder.embeddings.word.weight,
        "bert.embeddings.position_embeddings.weight": ours.encoder.embeddings.position.weight,
        "bert.encoder.layer.0.output.dense.weight": ours.encoder.blocks[0].feed_forward.down.weight,
        "bert.pooler.dense.weight": ours.pooler.dense.weight,
        "cls.predictions.bias": ours.heads["mlm"].decoder.bias,
    }
    for name, parameter in pairs.items():
        expected = grads[name].clone()
        if "word" in name:  # each side leaves out the padding token's own row or not
            expected[0] = parameter.grad[0]
        torch.testing.assert_close(parameter.grad, expected, atol=2e-5, rtol=1e-3, msg=name)
