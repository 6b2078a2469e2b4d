"""The same numbers as Transformers from the same random weights, in both directions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ownbert.batches.batch import from_padded
from ownbert.checkpoint import load, save
from support.floats import assert_close

transformers = pytest.importorskip("transformers")

LENGTHS = (20, 1, 7, 13)
WIDTH, VOCAB = max(LENGTHS), 61
ARCHITECTURES = [
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
]


def their_model(architecture: str, seed: int = 0, **settings) -> Any:
    """A tiny model of Transformers with every weight and bias random."""
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        num_labels=3,
        attn_implementation="eager",
        **settings,
    )
    model = getattr(transformers, architecture)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.2
        parameter.data.copy_(noise + name.endswith("LayerNorm.weight"))
    return model


def padded(side: str = "right") -> dict[str, torch.Tensor]:
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


def their_outputs(model: Any, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Everything a model of theirs gives, at the tokens only."""
    with torch.no_grad():
        out = model(**given, output_hidden_states=True)
    keep = given["attention_mask"].bool()
    found = {"hidden": out.hidden_states[-1][keep]}
    if "pooler_output" in out:
        found["pooled"] = out.pooler_output
    if "prediction_logits" in out:
        found["mlm"], found["nsp"] = out.prediction_logits[keep], out.seq_relationship_logits
    elif "logits" in out:
        name = type(model).__name__
        if name == "BertForMaskedLM":
            found["mlm"] = out.logits[keep]
        else:
            found["nsp" if "Next" in name else "classification"] = out.logits
    return found


def our_outputs(folder: Path, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    batch, _ = from_padded(given["input_ids"], given["attention_mask"], given["token_type_ids"])
    with torch.no_grad():
        out = load(folder)(batch)
    found = {"hidden": out.hidden, **out.logits}
    if not out.logits:
        found["pooled"] = out.pooled
    return found


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert_close(ours[name], tensor, name=name)
        assert tensor.std() > 0.01


@pytest.mark.parametrize("side", ["right", "left", "holes"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_outputs_of_every_architecture(tmp_path: Path, architecture: str, side: str):
    model, given = their_model(architecture), padded(side)
    model.save_pretrained(tmp_path)
    ours, theirs = our_outputs(tmp_path, given), their_outputs(model, given)
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
    assert_same(our_outputs(tmp_path, given), theirs)
    plain = their_outputs(their_model("BertForPreTraining"), given)
    assert not torch.allclose(plain["hidden"], theirs["hidden"], atol=1e-5)


def test_logits_at_masked_positions_only(tmp_path: Path):
    model, given = their_model("BertForPreTraining"), padded()
    model.save_pretrained(tmp_path)
    batch, _ = from_padded(given["input_ids"], given["attention_mask"], given["token_type_ids"])
    rows = torch.tensor([0, 3, 19, 20, 25, 40])
    with torch.no_grad():
        out = load(tmp_path)(replace(batch, masked_positions=rows))
    expected = their_outputs(model, given)["mlm"][rows]
    assert_close(out.logits["mlm"], expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_we_save_they_load(tmp_path: Path, architecture: str):
    theirs, given = their_model(architecture), padded()
    theirs.save_pretrained(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    first = load_file(tmp_path / "theirs" / "model.safetensors")
    second = load_file(tmp_path / "ours" / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    again, info = getattr(transformers, architecture).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    assert_same(their_outputs(again.eval(), given), their_outputs(theirs, given))
    assert again.config.architectures == [architecture]
    written = transformers.BertConfig.from_pretrained(tmp_path / "theirs")
    for name in ("hidden_act", "layer_norm_eps", "max_position_embeddings", "type_vocab_size"):
        assert getattr(again.config, name) == getattr(written, name)


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
    assert_same(our_outputs(tmp_path, given), their_outputs(model.float(), given))


def test_gradients_are_theirs(tmp_path: Path):
    model, given = their_model("BertForPreTraining"), padded()
    model.save_pretrained(tmp_path)
    labels = torch.full_like(given["input_ids"], -100)
    places = torch.tensor([[0, 3], [0, 19], [1, 0], [3, 5], [3, 12]])
    labels[tuple(places.T)] = torch.tensor([7, 8, 9, 10, 11])
    sentence = torch.tensor([0, 1, 1, 0])
    model(**given, labels=labels, next_sentence_label=sentence).loss.backward()

    ours = load(tmp_path)
    batch, _ = from_padded(given["input_ids"], given["attention_mask"], given["token_type_ids"])
    rows = torch.tensor([3, 19, 20, 33, 40])
    out = ours(replace(batch, masked_positions=rows))
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
