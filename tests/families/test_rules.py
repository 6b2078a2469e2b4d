"""The mapping of names: written once, reversible, nothing lost."""

import pytest
import torch

from ownbert.config import EncoderConfig
from ownbert.errors import InputError
from ownbert.families import FAMILIES, family_of
from ownbert.families.rules import Drop, Fuse, Rename, Tie
from ownbert.nn.model import Model

BERT = FAMILIES["bert"]
CONFIG = EncoderConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=6,
)
HEADS = ("mlm", "nsp", "classification")


def tensors(bare: bool = False) -> dict[str, torch.Tensor]:
    """A checkpoint of theirs with every head, every number in it another."""
    model = Model(CONFIG, HEADS, labels=("a", "b"))
    start = 0
    for parameter in model.parameters():
        parameter.data = torch.arange(start, start + parameter.numel()).view_as(parameter).float()
        start += parameter.numel()
    return BERT.to_theirs({n: p.data for n, p in model.named_parameters()}, 2, bare=bare)


def test_every_tensor_of_a_model_has_a_name_of_theirs():
    model = Model(CONFIG, HEADS, labels=("a", "b"))
    values = sum(p.numel() for p in model.parameters())
    assert sum(t.numel() for t in tensors().values()) == values
    ours, problems = BERT.to_ours(tensors(), 2)
    assert problems == []
    assert ours.keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("bare", [True, False])
def test_there_and_back(bare: bool):
    theirs = tensors(bare)
    ours, problems = BERT.to_ours(theirs, 2)
    assert problems == []
    again = BERT.to_theirs(ours, 2, bare=bare)
    assert again.keys() == theirs.keys()
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)


def test_queries_keys_and_values_keep_their_order():
    theirs = tensors()
    name = "bert.encoder.layer.1.attention.self."
    ours, _ = BERT.to_ours(theirs, 2)
    fused = ours["encoder.blocks.1.attention.qkv.weight"]
    for third, part in zip(fused.chunk(3), ("query", "key", "value"), strict=True):
        assert torch.equal(third, theirs[f"{name}{part}.weight"])


def test_a_prefix_may_be_there_or_not():
    theirs = tensors()
    assert "bert.pooler.dense.weight" in theirs
    bare = tensors(bare=True)
    assert not any(name.startswith("bert.") for name in bare)
    first, _ = BERT.to_ours(theirs, 2)
    second, problems = BERT.to_ours(bare, 2)
    assert problems == []
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_names_of_long_ago():
    theirs = tensors()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in theirs.items()
    }
    assert old.keys() != theirs.keys()
    old["bert.embeddings.position_ids"] = torch.arange(6)[None]
    ours, problems = BERT.to_ours(old, 2)
    assert problems == []
    expected, _ = BERT.to_ours(theirs, 2)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_a_tied_tensor_must_be_equal():
    theirs = tensors()
    words = theirs["bert.embeddings.word_embeddings.weight"]
    bias = theirs["cls.predictions.bias"]
    tied = {"cls.predictions.decoder.weight": words, "cls.predictions.decoder.bias": bias}
    ours, problems = BERT.to_ours(theirs | tied, 2)
    assert problems == []
    assert "heads.mlm.decoder.weight" not in ours
    for name, tensor in tied.items():
        _, problems = BERT.to_ours(theirs | tied | {name: tensor + 1}, 2)
        assert len(problems) == 1
        assert problems[0].startswith(f"tensor {name} differs from")


def test_what_is_wrong_is_named():
    theirs = tensors()
    key = "bert.encoder.layer.0.attention.self.key.weight"
    without = {name: tensor for name, tensor in theirs.items() if name != key}
    assert BERT.to_ours(without, 2)[1] == [f"missing tensor {key}"]
    for shape in [(8, 3), (4, 8), ()]:
        problems = BERT.to_ours(theirs | {key: torch.zeros(shape)}, 2)[1]
        assert len(problems) == 1
        assert key in problems[0]
        assert problems[0].endswith("must be of one shape")
    more = {"bert.encoder.layer.2.output.dense.bias": torch.zeros(8), "lstm.weight": torch.ones(1)}
    assert BERT.to_ours(theirs | more, 2)[1] == [f"unexpected tensor {name}" for name in more]
    twice = {"pooler.dense.bias": torch.zeros(8)}
    assert BERT.to_ours(theirs | twice, 2)[1] == ["tensor bert.pooler.dense.bias is there twice"]


def test_their_names_for_messages():
    assert BERT.their_name("encoder.embeddings.norm.bias", 2) == "bert.embeddings.LayerNorm.bias"
    query = BERT.their_name("encoder.blocks.1.attention.qkv.bias", 2)
    assert query.split(", ")[2] == "bert.encoder.layer.1.attention.self.value.bias"
    assert BERT.their_name("of.nobody", 2) == "of.nobody"


def test_every_rule_is_used_once():
    theirs = [rule.theirs for rule in BERT.rules]
    assert len(set(theirs)) == len(theirs)
    ours = [rule.ours for rule in BERT.rules if isinstance(rule, Rename | Fuse)]
    assert len(set(ours)) == len(ours)
    renamed = {rule.theirs for rule in BERT.rules if isinstance(rule, Rename)}
    assert all(rule.to in renamed for rule in BERT.rules if isinstance(rule, Tie))
    assert all(rule.reason for rule in BERT.rules if isinstance(rule, Drop))


def test_an_unknown_family_is_refused():
    assert family_of("bert", "here") is BERT
    with pytest.raises(InputError, match=r"here: model_type 'gpt2' is not known; one of bert"):
        family_of("gpt2", "here")
