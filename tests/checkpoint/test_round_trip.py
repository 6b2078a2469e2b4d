"""A model folder: there and back, with every tensor and every setting accounted for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ownbert.checkpoint import load, load_tokenizer, save
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from support.tiny import (
    CONFIG,
    LABELS,
    SPECIAL,
    TOKENIZER,
    change_config,
    change_weights,
    contents,
    made,
    parameters,
    same,
)


@pytest.mark.parametrize("heads", [(), ("mlm",), ("nsp",), ("mlm", "nsp"), ("classification",)])
def test_there_and_back(tmp_path: Path, heads: tuple[str, ...]):
    model = made(tmp_path, *heads)
    again = load(tmp_path)
    assert same(parameters(model), parameters(again))
    assert again.config == CONFIG
    assert not again.training
    assert again.labels == (LABELS if "classification" in heads else ())
    tokenizer = load_tokenizer(tmp_path, config=again.config)
    assert tokenizer.vocabulary() == TOKENIZER.vocabulary()
    assert {"config.json", "model.safetensors"} <= contents(tmp_path).keys()


def test_labels_are_in_the_config(tmp_path: Path):
    made(tmp_path, "classification")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["id2label"] == {"0": "zebra", "1": "ant", "2": "7"}
    assert config["label2id"] == {"zebra": 0, "ant": 1, "7": 2}
    many = [f"label {i}" for i in range(12)]
    save(Model(CONFIG, ["classification"], labels=many), tmp_path)
    assert load(tmp_path).labels == tuple(many)  # by number: 10 is not after 1


WORDS = "bert__embeddings__word_embeddings__weight"
QUERY = "bert__encoder__layer__1__attention__self__query__weight"
KEY, VALUE = QUERY.replace("query", "key"), QUERY.replace("query", "value")
WRONG_WEIGHTS = [
    ({WORDS: ...}, "missing tensor bert.embeddings.word_embeddings.weight"),
    ({QUERY: ...}, "missing tensor bert.encoder.layer.1.attention.self.query.weight"),
    ({"cls__predictions__bias": ...}, "missing tensor cls.predictions.bias"),
    ({"lstm__weight": torch.ones(2)}, "unexpected tensor lstm.weight"),
    ({"classifier__weight": torch.ones(2, 8)}, "unexpected tensor classifier.weight"),
    ({WORDS: torch.ones(12, 8)}, "word_embeddings.weight has shape (12, 8), expected (11, 8)"),
    (
        {QUERY: torch.ones(8, 4)},
        "config.json: tensors bert.encoder.layer.1.attention.self.query.weight (8, 4), bert.encoder"
        ".layer.1.attention.self.key.weight (8, 8), bert.encoder",
    ),
    ({QUERY: torch.ones(16, 8)}, "must be of one shape"),
    (
        {QUERY: torch.ones(4, 8), KEY: torch.ones(4, 8), VALUE: torch.ones(4, 8)},
        "attention.self.value.weight have shape (4, 8) each, expected (8, 8)",
    ),
    (
        {"cls__predictions__decoder__weight": torch.ones(11, 8)},
        "tensor cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight",
    ),
    (
        {"bert__pooler__dense__bias": torch.ones(8, dtype=torch.int8)},
        "tensor bert.pooler.dense.bias contains torch.int8",
    ),
    (
        {"bert__encoder__layer__2__output__dense__bias": torch.ones(8)},
        "unexpected tensor bert.encoder.layer.2.output.dense.bias",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_WEIGHTS)
def test_every_tensor_is_accounted_for(tmp_path: Path, changes: dict, message: str):
    made(tmp_path, "mlm", "nsp")
    change_weights(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / "model.safetensors") in str(caught.value)
    assert str(caught.value).count("missing tensor") == message.count("missing tensor")


def test_a_tied_decoder_may_be_there(tmp_path: Path):
    model = made(tmp_path, "mlm")
    words = model.encoder.embeddings.word.weight.detach().clone()
    change_weights(tmp_path, cls__predictions__decoder__weight=words)
    assert same(parameters(load(tmp_path)), parameters(model))


def test_the_prefix_may_be_there_or_not(tmp_path: Path):
    model = made(tmp_path)
    path = tmp_path / "model.safetensors"
    bare = load_file(path)
    assert "embeddings.LayerNorm.weight" in bare
    save_file({f"bert.{name}": tensor for name, tensor in bare.items()}, path)
    assert same(parameters(load(tmp_path)), parameters(model))


def test_many_problems_are_cut_short(tmp_path: Path):
    made(tmp_path)
    path = tmp_path / "model.safetensors"
    kept = {n: t for n, t in load_file(path).items() if "attention" not in n}
    save_file(kept, path)
    with pytest.raises(InputError, match=r"missing tensor.*; and 8 more$"):
        load(tmp_path)


WRONG_CONFIG = [
    ({"position_embedding_type": "relative_key"}, "missing tensor bert.encoder.layer.0.attention"),
    ({"position_embedding_type": "xpos"}, "position_embedding_type 'xpos' is not known"),
    (
        {"is_decoder": True, "add_cross_attention": True},
        "missing tensor bert.encoder.layer.0.cross",
    ),
    ({"add_cross_attention": True}, "add_cross_attention needs is_decoder true"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    (
        {"pruned_heads": {"0": [1]}},
        "attention.self.value.weight have shape (8, 8) each, expected (4, 8)",
    ),
    ({"pruned_heads": {"2": [1]}}, "pruned_heads names layer 2; the layers are 0..1"),
    ({"pruned_heads": {"0": [2]}}, "layer 0 has no head 2"),
    ({"pruned_heads": [1]}, "pruned_heads is [1]"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
    ({"model_type": "gpt2"}, "model_type 'gpt2' is not known; it must be one of bert"),
    ({"model_type": "albert"}, "architecture 'BertForSequenceClassification' is not supported"),
    (
        {"model_type": ..., "type_vocab_size": ...},
        "config.json: model_type is missing; it must be one of bert",
    ),
    ({"architectures": ["BertForWeather"]}, "architecture 'BertForWeather' is not supported"),
    ({"vocab_size": ...}, "vocab_size is missing"),
    ({"hidden_size": "8"}, "hidden_size is '8'"),
    ({"hidden_act": "snake"}, "hidden_act 'snake' is not known"),
    ({"layer_norm_eps": "1e-5"}, "layer_norm_eps is '1e-5'; it must be a finite number"),
    ({"num_attention_heads": 3}, "hidden_size 8 must be a multiple of num_attention_heads 3"),
    ({"id2label": {"0": "a", "x": "b"}}, "id2label must name the labels 0, 1, 2"),
    ({"id2label": {"0": "a", "2": "b"}}, "id2label must name the labels 0, 1, 2"),
    ({"id2label": ..., "num_labels": 4}, "classifier.weight has shape (3, 8), expected (4, 8)"),
    ({"ownbert_heads": [{"kind": "nsp", "colour": 1}]}, "ownbert_heads[0].'colour' is not known"),
    ({"hidden_size": 10}, "word_embeddings.weight has shape (11, 8), expected (11, 10)"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_CONFIG)
def test_what_the_config_asks_for_is_done_or_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    made(tmp_path, "classification")
    change_config(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_class_too_many_is_named(tmp_path: Path):
    made(tmp_path, "classification")
    change_config(tmp_path, id2label={str(i): str(i) for i in range(4)})
    with pytest.raises(InputError, match=r"classifier\.weight has shape \(3, 8\), expected \(4, 8"):
        load(tmp_path)


def test_files_that_are_missing_or_damaged(tmp_path: Path):
    with pytest.raises(InputError, match=r"no such file: .*config\.json; is .* a model folder"):
        load(tmp_path)
    made(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"model\.safetensors cannot be read.*damaged"):
            load(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"no such file: .*model\.safetensors; train a model"):
        load(tmp_path)
    for other in ("pytorch_model.bin", "model.safetensors.index.json"):
        (tmp_path / other).touch()
        with pytest.raises(InputError, match=f"{other} (cannot be read|is not valid JSON)"):
            load(tmp_path)
        (tmp_path / other).unlink()
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=r"config\.json"):
            load(tmp_path)


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "1" * 5000])
def test_json_that_python_cannot_read(tmp_path: Path, value: str):
    """Nested too deeply, or a number of 5,000 digits."""
    made(tmp_path)
    names = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json")
    for name in names:
        path = tmp_path / name
        whole = path.read_text() if path.exists() else "{}"
        path.write_text(
            f'{{"own": {value}, {whole[1:]}' if whole != "{}" else f'{{"own": {value}}}'
        )
        with pytest.raises(InputError, match=name) as caught:
            (load if name == "config.json" else load_tokenizer)(tmp_path)
        assert "\n" not in str(caught.value)
        path.write_text(whole)
    load(tmp_path)
    load_tokenizer(tmp_path)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path):
    config = made(tmp_path).config
    Tokenizer.blank([*SPECIAL, *"fedcba"]).save(tmp_path)
    with pytest.raises(InputError, match="not the one that the model was trained with"):
        load_tokenizer(tmp_path, config=config)
    Tokenizer.blank([*SPECIAL, *"abcdefg"]).save(tmp_path)
    with pytest.raises(InputError, match="the tokenizer has 12 tokens, but the model only 11"):
        load_tokenizer(tmp_path, config=config)
    TOKENIZER.save(tmp_path)
    assert load_tokenizer(tmp_path, config=config).vocab_size == 11
    change_config(tmp_path, ownbert_vocabulary=...)
    Tokenizer.blank([*SPECIAL, *"abc"]).save(tmp_path)  # others pad their vocabulary
    assert load_tokenizer(tmp_path, config=config).vocab_size == 8
