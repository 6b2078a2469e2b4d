"""Folders and files of others: whatever their JSON and YAML hold is refused in one line that names
file and key, before anything of its size is built."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiny import TOKENIZER, change_config, change_weights, made

import ownbert
from ownbert.checkpoint import load
from ownbert.checkpoint.model_files import read_config
from ownbert.checks import dict_of, either, list_of, maybe, number, one_of, record, text, whole
from ownbert.config.head_spec import HeadSpec
from ownbert.corpus.store import Store
from ownbert.exceptions import InputError
from ownbert.families import all_kinds
from ownbert.files.folders import inside
from ownbert.files.json_files import parse_yaml, read_json
from ownbert.inference.fill_mask import Filler
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import list_members
from ownbert.inspect.describe import describe
from ownbert.inspect.trace.trace import trace_attention
from ownbert.tasks.embedding_config import read_embedding_config
from ownbert.text.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path / "model", "classification", "mlm")
    return tmp_path / "model"


CONFIGS = [
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be at most 1,000"),
    ({"num_hidden_layers": 999}, "missing tensor bert.encoder.layer.998."),
    ({"vocab_size": 10**12}, "vocab_size is 1000000000000; it must be at most"),
    ({"vocab_size": 2_000_000}, "has shape (11, 8), expected (2000000, 8)"),
    ({"max_position_embeddings": 10**6}, "has shape (6, 8), expected (1000000, 8)"),
    ({"intermediate_size": 200_000}, "expected (200000, 8)"),
    ({"id2label": None, "num_labels": 10**12}, "num_labels is 1000000000000; it must be"),
    ({"id2label": None, "num_labels": 50_000}, "has shape (3, 8), expected (50000, 8)"),
    ({"num_labels": "x", "id2label": None}, "config.json: num_labels is 'x'; it must be"),
    ({"architectures": {"a": 1}}, "config.json: architectures is {'a': 1}; it must be a list"),
    ({"model_type": ["bert"]}, "model_type is ['bert']; it must be text"),
    ({"hidden_act": {}}, "hidden_act is {}; it must be text"),
    ({"is_decoder": "yes"}, "is_decoder is 'yes'; it must be true or false"),
    ({"classifier_dropout": "a"}, "classifier_dropout is 'a'; it must be a number"),
    ({"classifier_dropout": 1.0}, "classifier_dropout is 1.0; it must be in [0, 1)"),
    (
        {"ownbert_heads": [{"kind": "tokens", "dropout": 1}]},
        "ownbert_heads[0].dropout is 1; it must be in [0, 1)",
    ),
    ({"pruned_heads": [1]}, "pruned_heads is [1]; it must be an object"),
    ({"ownbert_task": [1]}, "ownbert_task is [1]; it must be an object"),
    ({"ownbert_task": {"name": 3}}, "ownbert_task.name is 3; it must be text"),
    (
        {"ownbert_task": {"name": "classify", "settings": {"stride": "x"}}},
        "ownbert_task: settings.stride must be int, not 'x'",
    ),
    (
        {"ownbert_task": {"name": "classify", "columns": {"text": [1]}}},
        "ownbert_task.columns.text is [1]; it must be text",
    ),
    ({"ownbert_heads": [{"kind": "no"}]}, "ownbert_heads[0].kind is 'no'; it must be one of mlm,"),
    ({"ownbert_heads": [{"kind": "tokens", "output": 10**12}]}, "ownbert_heads[0].output is"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIGS, ids=[str(c)[:50] for c, _ in CONFIGS])
def test_a_config_is_refused_before_a_model_is_made(
    folder: Path, changes: dict[str, Any], message: str
):
    change_config(folder, **changes)
    with pytest.raises(InputError) as caught:
        open_folder(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"vocab_size": 2_000_000}, {"num_hidden_layers": 999}, {"num_labels": 10**12}]
)
def test_models_with_transformers_names_compare_sizes_first(folder: Path, changes: dict[str, Any]):
    change_config(folder, **changes)
    with pytest.raises(InputError, match=r"does not (fit|match)|num_labels is"):
        ownbert.BertForSequenceClassification.from_pretrained(folder)


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.model_type)
def test_no_dropout_rate_of_any_family_may_be_one(tmp_path: Path, kind: Any):
    keys = [key for key in kind.defaults if "dropout" in key and not key.startswith("summary_f")]
    assert keys
    for key in keys:
        for rate in (1.0, -0.1, float("nan")):
            values = {"model_type": kind.model_type, key: rate}
            (tmp_path / "config.json").write_text(json.dumps(values))
            with pytest.raises(InputError, match=rf"config\.json.*{key}"):
                read_config(tmp_path / "config.json")


@pytest.mark.parametrize("rate", [1.0, 5, "0.1"])
def test_heads_made_in_python_are_checked_too(rate: Any):
    with pytest.raises(InputError, match=r"dropout is .*; it must be"):
        HeadSpec("classification", dropout=rate)
    with pytest.raises(InputError, match=r"dropout is .*; it must be"):
        ownbert.BertForSequenceClassification(ownbert.BertConfig(classifier_dropout=rate))


def test_sizes_of_every_kind_of_table_are_compared(tmp_path: Path):
    for kind in ("relative_key", "relative_key_query"):
        made(tmp_path / kind)
        change_config(tmp_path / kind, position_embedding_type=kind)
        with pytest.raises(InputError, match=r"missing tensor.*distance_embedding"):
            load(tmp_path / kind)


def test_weights_that_are_not_numbers_are_refused(folder: Path):
    change_weights(folder, classifier__bias=torch.tensor([1.0, float("nan"), 0.0]))
    for use in (load, open_folder, Filler):
        with pytest.raises(
            InputError, match=r"classifier\.bias contains values that are not finite"
        ):
            use(folder)
    # Large numbers are numbers, even if their sum is none.
    made(folder, "classification")
    change_weights(folder, classifier__bias=torch.full((3,), 3e38))
    load(folder)


def test_json_that_no_reader_would_survive(tmp_path: Path):
    path = tmp_path / "a.json"
    for content, message in (
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ('{"a": ' + "9" * 6000 + "}", "too many digits"),
        ('{"a": [{"b": -' + "9" * 400 + "}]}", "too many digits"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            read_json(path, object)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is a pipe or a device"):
        read_json(path)
    with pytest.raises(InputError, match="is a pipe or a device"):
        read_json(path, missing={})


def test_yaml_that_no_reader_would_survive():
    bomb = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{name}: &{name} [{','.join(9 * ['*' + before])}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for content, message in (
        (bomb, "too many objects and lists"),
        ("[" * 2000, "nested too deeply"),
        ("a: " + "9" * 6000, "too many digits"),
        ("9" * 400, "too many digits"),
        ("a: 2001-99-99", "month must be in"),
        ("a: !!python/name:os.system ", "could not determine a constructor"),
        ("\0", "not allowed"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            parse_yaml(content, "recipe.yaml")
        assert str(caught.value).startswith("recipe.yaml ")
        assert "\n" not in str(caught.value)


def _change(name: str, **changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        values = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps(values))

    return change


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_lower_case": "maybe"}, "do_lower_case is 'maybe'; it must be true or false"),
        ({"model_max_length": "x"}, "model_max_length is 'x'; it must be a finite number"),
        ({"never_split": 5}, "never_split is 5; it must be a list"),
        ({"extra_ids": 10**9}, "extra_ids is 1000000000; it must be a whole number from 0 to 10,0"),
        ({"pad_token": 7}, "pad_token is 7; it must be a token"),
        ({"tokenizer_class": [1]}, r"tokenizer_class is \[1\]; it must be text"),
    ],
)
def test_a_tokenizer_config_names_the_key(tmp_path: Path, changes: dict[str, Any], message: str):
    TOKENIZER.save(tmp_path)
    _change("tokenizer_config.json", **changes)(tmp_path)
    for read in (Tokenizer.load, ownbert.BertTokenizer.from_pretrained):
        with pytest.raises(InputError, match=rf"tokenizer_config\.json: {message}"):
            read(tmp_path)


def test_an_id_of_four_billion_makes_no_list(tmp_path: Path):
    TOKENIZER.save(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    values["model"]["vocab"]["zz"] = 4 * 10**9
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"ids are not 0\.\.11, each once"):
        Tokenizer.load(tmp_path)


def test_folders_that_a_file_names_are_below_its_own(folder: Path):
    for name in ("../other", "/etc", "a/../../b", "a\0b"):
        with pytest.raises(InputError, match="which is outside its folder"):
            inside(folder, name, "a.json")
    (folder / "ensemble.json").write_text(json.dumps({"members": [{"folder": "../model"}]}))
    with pytest.raises(InputError, match=r"ensemble\.json names '\.\./model'"):
        list_members(folder)
    (folder / "ensemble.json").write_text(json.dumps({"members": 5}))
    with pytest.raises(InputError, match=r"ensemble\.json: members is 5; it must be a list"):
        list_members(folder)
    for modules, message in (
        ([{"type": "a.Pooling", "path": "../model"}], "names '../model'"),
        ([{"type": 3}], "[0]: type is 3; it must be text"),
        ({}, "must contain a JSON list"),
    ):
        (folder / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(InputError) as caught:
            read_embedding_config(folder)
        assert message in str(caught.value)


def test_a_store_has_no_other_files_and_dtypes(tmp_path: Path):
    entry = {"dtype": "<i8", "bytes": 0, "crc32": 0}
    files = dict.fromkeys(("sentences", "documents", "counts"), entry)
    tokens = {"tokens": {**entry, "dtype": "<u2"}}
    for changed, message in (
        ({"tokens": {**entry, "dtype": "O"}}, "files.tokens.dtype is 'O'"),
        ({**tokens, "../x": entry}, "'../x' is not known"),
        ({**tokens, "counts": {**entry, "bytes": -1}}, "files.counts.bytes is -1"),
    ):
        index = {"format": 1, "settings": {"tokenizer": "x"}, "files": {**files, **changed}}
        (tmp_path / "store.json").write_text(json.dumps(index))
        with pytest.raises(InputError) as caught:
            Store.open(tmp_path)
        assert message in str(caught.value)


def test_lengths_are_checked_before_anything_is_made(folder: Path):
    with pytest.raises(InputError, match="the model takes from 1 to 6"):
        describe(folder, tokens=10**6)
    with pytest.raises(InputError, match="inputs is 20,000 x 2; a trace shows every number"):
        trace_attention([[1, 2]] * 20_000, [[1], [2]], [[1], [2]], [[1], [2]])


def test_a_check_names_the_place():
    check = record(
        {
            "a": list_of(record({"b": maybe(whole(1, 5))}, required=("b",)), least=1),
            "c": dict_of(number(0, 1)),
            "d": either(text, whole(0, 9), wanted="text or a digit"),
            "e": one_of(True, 1, "x"),
        },
        closed=True,
    )
    check("f.json", {"a": [{"b": None}, {"b": 5}], "c": {"x": 0.5}, "d": 3, "e": 1})
    for value, message in (
        ([], "f.json is []; it must be an object"),
        ({"a": []}, "f.json: a is []; it must be a list of 1 or more"),
        ({"a": [{"b": 5}, {}]}, "f.json: a[1].b is missing"),
        ({"a": [{"b": True}]}, "f.json: a[0].b is True; it must be a whole number from 1 to 5"),
        ({"a": [{"b": 10**5000}]}, "f.json: a[0].b is a number of about 5,000 digits; it must"),
        ({"c": {"x": float("nan")}}, "f.json: c.x is nan; it must be a number from 0 to 1"),
        ({"d": 10}, "f.json: d is 10; it must be text or a digit"),
        ({"e": False}, "f.json: e is False; it must be one of True, 1, x"),
        ({"z": 1}, "f.json: 'z' is not known; use one of a, c, d, e"),
    ):
        with pytest.raises(InputError) as caught:
            check("f.json", value)
        assert message in str(caught.value)
