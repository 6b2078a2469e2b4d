"""Heads and poolers that a folder has and is asked for, and those that Transformers lacks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ownbert.checkpoint import load, save
from ownbert.config.encoder import XLNET_STRUCTURE
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from support.tiny import CONFIG, change_config, change_weights, made, parameters, same


def test_other_heads(tmp_path: Path):
    model = made(tmp_path, "mlm", "nsp")
    torch.manual_seed(5)
    tuned = load(tmp_path, heads=["classification"], labels=["x", "y"], dropout=0.0)
    found, before = parameters(tuned), parameters(model)
    assert found.keys() == {n for n in before if not n.startswith("heads.")} | {
        "heads.classification.dense.weight",
        "heads.classification.dense.bias",
    }
    shared = found.keys() & before.keys()
    assert all(torch.equal(found[name], before[name]) for name in shared)
    assert found["heads.classification.dense.weight"].shape == (2, 8)
    assert float(found["heads.classification.dense.weight"].abs().max()) < 0.05
    assert tuned.config.hidden_dropout_prob == tuned.config.attention_probs_dropout_prob == 0.0
    kept = parameters(load(tmp_path, heads=["nsp"]))
    assert torch.equal(kept["heads.nsp.dense.weight"], before["heads.nsp.dense.weight"])


def test_a_head_of_which_only_a_piece_is_there_does_not_start_anew(tmp_path: Path):
    made(tmp_path, "mlm")
    change_weights(tmp_path, cls__seq_relationship__weight=torch.ones(2, 8))
    with pytest.raises(InputError, match=r"missing tensor cls\.seq_relationship\.bias"):
        load(tmp_path, heads=["mlm", "nsp"])


def test_a_folder_of_google_says_less_than_it_has(tmp_path: Path):
    """bert-base-uncased: BertForMaskedLM, with a pooler and a head of next sentences besides."""
    model = made(tmp_path, "mlm", "nsp")
    change_config(tmp_path, architectures=["BertForMaskedLM"])
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    text = str(caught.value)
    assert "unexpected tensor bert.pooler.dense.bias" in text
    assert text.endswith(
        'BertForMaskedLM has no nsp: load it with heads=("mlm", "nsp") to have these too; '
        'heads=("mlm",) leaves them out'
    )
    assert same(parameters(load(tmp_path, heads=("mlm", "nsp"))), parameters(model))
    assert load(tmp_path, heads=("mlm",)).pooler is None
    change_weights(tmp_path, cls__seq_relationship__bias=..., cls__seq_relationship__weight=...)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert str(caught.value).endswith(
        'they are a pooler that BertForMaskedLM does not have: load it with heads=("mlm",) leaves '
        "them out"
    )


def test_without_architectures_it_is_the_base_model(tmp_path: Path):
    model = made(tmp_path)
    change_config(tmp_path, architectures=...)
    assert same(parameters(load(tmp_path)), parameters(model))
    model = made(tmp_path, "classification")
    change_config(tmp_path, architectures=...)
    # Three heads of BERT have tensors of these names.
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert str(caught.value).endswith(
        "BertModel has no classification or choice or tokens: load it with "
        'heads=("classification",) or heads=("choice",) or heads=("tokens",) to have these too; '
        "heads=() leaves them out"
    )
    assert same(parameters(load(tmp_path, heads=("classification",))), parameters(model))
    assert load(tmp_path, heads=()).pooler is not None
    made(tmp_path, "tokens")
    change_config(tmp_path, architectures=...)
    with pytest.raises(
        InputError, match=r'BertModel has no tokens: load it with heads=\("tokens",\)'
    ):
        load(tmp_path)
    load(tmp_path, heads=("tokens",))


def test_a_hint_is_given_only_where_it_helps(tmp_path: Path):
    made(tmp_path, "mlm", "nsp")
    change_config(tmp_path, architectures=["BertForMaskedLM"])
    change_weights(tmp_path, lstm__weight=torch.ones(2))
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert "heads=" not in str(caught.value)


def test_a_base_model_without_pooler(tmp_path: Path):
    """As Transformers writes one made with add_pooling_layer=False."""
    made(tmp_path)
    change_weights(tmp_path, pooler__dense__bias=..., pooler__dense__weight=...)
    with pytest.raises(InputError, match="the folder has no pooler: load it with pooler=False"):
        load(tmp_path)
    model = load(tmp_path, pooler=False)
    assert model.pooler is None
    save(model, tmp_path / "again")
    assert same(parameters(load(tmp_path / "again")), parameters(model))
    assert load(tmp_path, heads=("classification",)).pooler is not None


OWN = [
    ("mlm", "sop"),
    ("nsp", "classification"),
    ("classification", "tokens"),
    (HeadSpec("classification", pooling="mean"),),
    (HeadSpec("classification", pooling="attention", dense="tanh"), "mlm"),
    (HeadSpec("choice", pooling="lstm"),),
    (HeadSpec("classification", ngrams=50),),
    ("discriminator",),
]


@pytest.mark.parametrize("heads", OWN, ids=str)
def test_heads_that_transformers_does_not_know(tmp_path: Path, heads: tuple[Any, ...]):
    """They are kept under names of our own, beside an encoder that it can read."""
    model = made(tmp_path, *heads)
    again = load(tmp_path)
    assert again.specs == model.specs
    assert list(again.heads) == list(model.heads)
    assert same(parameters(again), parameters(model))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "bert"
    known = ["BertForMaskedLM"] if "mlm" in again.specs else None
    known = ["BertForNextSentencePrediction"] if "nsp" in again.specs else known
    known = ["BertForSequenceClassification"] if "tokens" in again.specs else known
    assert config["architectures"] == (known or ["BertModel"])
    names = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("ownbert.heads.") for name in names)
    # A plain head saved over it says nothing of the old ones.
    made(tmp_path, "mlm")
    assert list(load(tmp_path).specs) == ["mlm"]


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "alibi"])
def test_positions_of_our_own(tmp_path: Path, kind: str):
    model = Model(replace(CONFIG, position_embedding_type=kind), ["mlm"])
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.config.position_embedding_type == kind
    assert same(parameters(again), parameters(model))
    table = "bert.embeddings.position_embeddings.weight"
    assert (table in load_file(tmp_path / "model.safetensors")) == (kind == "sinusoidal")


def test_rates_of_heads(tmp_path: Path):
    distil = replace(CONFIG, type_vocab_size=0, drop_attention_output=False)
    span = HeadSpec("span", dropout=0.3)
    save(Model(distil, [span], pooler=False, model_type="distilbert"), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["qa_dropout"] == 0.3
    assert load(tmp_path).specs["span"].dropout == 0.3
    save(load(tmp_path, dropout=0.4), tmp_path)
    again = load(tmp_path)
    assert again.specs["span"].dropout == 0.0  # its own, where none is named
    assert again.config.hidden_dropout_prob == 0.4


def test_a_rate_is_that_of_all_layers(tmp_path: Path):
    config = replace(CONFIG, **XLNET_STRUCTURE, activation_dropout=0.1)
    save(Model(config, pooler=False, model_type="xlnet"), tmp_path)
    for rate in (0.0, 0.3):
        loaded = load(tmp_path, dropout=rate)
        assert {m.p for m in loaded.modules() if isinstance(m, torch.nn.Dropout)} == {rate}
        assert loaded.config.activation_dropout == rate


def test_a_pooler_that_the_folder_lacks_starts_anew(tmp_path: Path):
    made(tmp_path, "mlm")
    with_pooler = load(tmp_path, heads=["classification"], labels=["x", "y"])
    assert with_pooler.pooler is not None
    assert float(with_pooler.pooler.dense.weight.detach().abs().max()) <= 0.04


def test_heads_that_should_be_there_do_not_start_anew(tmp_path: Path):
    made(tmp_path, "mlm", "nsp")
    change_weights(tmp_path, cls__seq_relationship__bias=...)
    with pytest.raises(InputError, match=r"missing tensor cls\.seq_relationship\.bias"):
        load(tmp_path, heads=["nsp"])
    load(tmp_path, heads=["mlm"])
    change_weights(tmp_path, bert__pooler__dense__bias=...)
    with pytest.raises(InputError, match=r"missing tensor bert\.pooler\.dense\.bias"):
        load(tmp_path, heads=["classification"], labels=["x", "y"])
