"""A model folder: there and back, with every tensor and every setting accounted for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ownbert import load, load_tokenizer, save
from ownbert.config import EncoderConfig
from ownbert.errors import InputError
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = Tokenizer.blank([*SPECIAL, *"abcdef"])
CONFIG = EncoderConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=6,
    hidden_dropout_prob=0.2,
)
LABELS = ("zebra", "ant", "7")


def made(folder: Path, *heads: str, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    model = Model(CONFIG, heads, labels=LABELS)
    for parameter in model.parameters():
        parameter.data.normal_()
    save(model, folder, tokenizer=TOKENIZER)
    return model.eval()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def change_weights(folder: Path, **changes: Any) -> None:
    """Names are with __ for the dot; ... takes a tensor away."""
    path = folder / "model.safetensors"
    changed = {name.replace("__", "."): tensor for name, tensor in changes.items()}
    weights = {n: t for n, t in (load_file(path) | changed).items() if t is not ...}
    save_file(weights, path)


def parameters(model: Model) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


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
    assert sorted(contents(tmp_path)) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


def test_labels_are_in_the_config(tmp_path: Path):
    made(tmp_path, "classification")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["id2label"] == {"0": "zebra", "1": "ant", "2": "7"}
    assert config["label2id"] == {"zebra": 0, "ant": 1, "7": 2}
    many = [f"label {i}" for i in range(12)]
    save(Model(CONFIG, ["classification"], labels=many), tmp_path)
    assert load(tmp_path).labels == tuple(many)  # by number: 10 is not after 1


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


WORDS = "bert__embeddings__word_embeddings__weight"
QUERY = "bert__encoder__layer__1__attention__self__query__weight"
WRONG_WEIGHTS = [
    ({WORDS: ...}, "missing tensor bert.embeddings.word_embeddings.weight"),
    ({QUERY: ...}, "missing tensor bert.encoder.layer.1.attention.self.query.weight"),
    ({"cls__predictions__bias": ...}, "missing tensor cls.predictions.bias"),
    ({"lstm__weight": torch.ones(2)}, "unexpected tensor lstm.weight"),
    ({"classifier__weight": torch.ones(2, 8)}, "unexpected tensor classifier.weight"),
    ({WORDS: torch.ones(12, 8)}, "word_embeddings.weight has shape (12, 8), expected (11, 8)"),
    ({QUERY: torch.ones(8, 4)}, "query.weight, bert.encoder.layer.1.attention.self.key.weight"),
    ({QUERY: torch.ones(16, 8)}, "must be of one shape"),
    (
        {"cls__predictions__decoder__weight": torch.ones(11, 8)},
        "tensor cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight",
    ),
    (
        {"bert__pooler__dense__bias": torch.ones(8, dtype=torch.int8)},
        "tensor bert.pooler.dense.bias holds torch.int8",
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
    change_config(tmp_path, num_hidden_layers=4)
    with pytest.raises(InputError, match=r"missing tensor.*; and 20 more$"):
        load(tmp_path)


WRONG_CONFIG = [
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({"is_decoder": True}, "is_decoder is True, which is not supported"),
    ({"add_cross_attention": True}, "add_cross_attention is True"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads is {'0': [1]}"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
    ({"problem_type": "regression"}, "problem_type is 'regression'"),
    ({"model_type": "gpt2"}, "model_type 'gpt2' is not known; one of bert"),
    ({"model_type": ...}, "model_type '' is not known"),
    ({"architectures": ["BertForWeather"]}, "architecture 'BertForWeather' is not supported"),
    ({"vocab_size": ...}, "vocab_size is missing"),
    ({"hidden_size": "8"}, "hidden_size is '8'"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is not known"),
    ({"num_attention_heads": 3}, "hidden_size 8 cannot be shared by num_attention_heads 3"),
    ({"id2label": {"0": "a", "x": "b"}}, "id2label must name the labels 0, 1, 2"),
    ({"id2label": {"0": "a", "2": "b"}}, "id2label must name the labels 0, 1, 2"),
    ({"hidden_size": 10}, "embeddings.LayerNorm.bias has shape (8,), expected (10,)"),
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
        with pytest.raises(InputError, match=f"{other} is not read, save the model as one"):
            load(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=r"config\.json"):
            load(tmp_path)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path):
    config = made(tmp_path).config
    Tokenizer.blank([*SPECIAL, *"fedcba"]).save(tmp_path)
    with pytest.raises(InputError, match="not the one that the model was trained with"):
        load_tokenizer(tmp_path, config=config)
    Tokenizer.blank([*SPECIAL, *"abcdefg"]).save(tmp_path)
    with pytest.raises(InputError, match="the tokenizer has 12 tokens, the model only 11"):
        load_tokenizer(tmp_path, config=config)
    TOKENIZER.save(tmp_path)
    assert load_tokenizer(tmp_path, config=config).vocab_size == 11
    change_config(tmp_path, ownbert_vocabulary=...)
    Tokenizer.blank([*SPECIAL, *"abc"]).save(tmp_path)  # others pad their vocabulary
    assert load_tokenizer(tmp_path, config=config).vocab_size == 8
