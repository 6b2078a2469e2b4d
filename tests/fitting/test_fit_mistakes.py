"""What ``fit`` says of its input before anything is fitted: previews, warnings and mistakes."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ownbert
from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.exceptions import InputError
from ownbert.exporting.quantize import quantize
from ownbert.fitting.fit import clear, preview_fit
from support import tiny
from support.cli import run_cli
from support.fit_files import sentence_model


def test_a_damaged_sentence_model_is_refused_before_anything_is_fitted(
    pretrained: Path, topics: Path, tmp_path: Path
):
    model = sentence_model(pretrained, tmp_path / "sentences")
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode')
    with pytest.raises(InputError, match=r"sentences/1_Pooling/config\.json"):
        ownbert.fit(topics / "train.csv", model=model, output=tmp_path / "out", minutes=1)
    assert not (tmp_path / "out").exists()


def test_a_mistake_in_python_is_one_line(fitted: Path, topics: Path, tmp_path: Path):
    """Rows in memory are named, not temporary files; settings are read before the folder."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04\x14\x00\xff\xfe")
    (tmp_path / "a.json").write_text('{"text": {"0": "a b"}, "label": {"0": "x"}}')
    train, given = topics / "train.csv", {"output": tmp_path / "out"}
    missing = [{"text": "a", "label": "x"}, {"text": "b", "label": None}]
    calls: Sequence[tuple[Any, dict[str, Any], str]] = (
        (missing, {}, "the train data, row 2: 'label' is missing"),
        ((["half \ud800"] * 4, ["x", "y"] * 2), {}, "surrogate"),
        ((["a"] * 2, [object()] * 2), {}, "row 1: 'label' is of type object, not a text"),
        (tmp_path / "folder", given, "folder is a folder, a file is needed"),
        (tmp_path / "a.xlsx", given, "save its content as text or csv"),
        (tmp_path / "a.json", given, "a.json, line 1: 'text' is an object, not a text"),
        (train, {"output": fitted, "minute": 1}, "did you mean minutes"),
        (train, {"output": fitted}, "already contains a model"),
        (train, {"dev": [("other words", "red")]}, "two or more"),
    )
    for rows, options, message in calls:
        with pytest.raises(InputError, match=message) as error:
            ownbert.fit(rows, quiet=True, **options)
        assert "/ownbert-" not in str(error.value)


def test_overwriting_removes_nothing_that_fit_has_not_made(topics: Path, tmp_path: Path):
    given = {"minutes": 0.01, "output": tmp_path, "overwrite": True, "quiet": True}
    mine = (tmp_path / "mine.txt", tmp_path / "work" / "mine.txt")
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("kept")
    with pytest.raises(InputError, match="work was not written by ownbert"):
        ownbert.fit(topics / "train.csv", **given)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.txt", "work"}
    (tmp_path / "work").rename(tmp_path / "mine")
    for _ in range(2):
        ownbert.fit(topics / "train.csv", **given)
        assert (tmp_path / "blend.json").exists()
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert (tmp_path / "mine" / "mine.txt").read_text() == "kept"


def test_other_texts_without_labels_get_a_warning(topics: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text("这是一段中文文本。\n" * 3 + "另一段文本\n")
    done = run_cli(
        *("fit", topics / "train.csv", "--unlabelled", other, "-o", tmp_path / "out"),
        *("--minutes", "0.01"),
    )
    assert done.returncode == 0, done.stderr
    assert "are these of the same kind?" in done.stdout


def test_a_dry_run_names_columns_empty_texts_and_known_test_rows():
    texts = ["" if i % 10 == 3 else f"word{i % 7} of text {i}" for i in range(40)]
    rows = {"subject": ["re"] * 40, "body": texts, "label": ["a", "b"] * 20}
    test = {"body": [texts[0], *(f"new text {i}" for i in range(29))], "label": ["a", "b"] * 15}
    lines = preview_fit(rows, test=test).splitlines()
    assert lines[1] == "columns: 'body' as input, 'label' as target (not used: subject)"
    assert lines[2].startswith("warning: 4 training documents have an empty text: the train data")
    assert lines[3] == "warning: The training data contains 1 of the 30 test rows"
    assert "says little" in preview_fit(rows, test=rows)


def test_a_dry_run_counts_the_training_rows_without_those_of_dev():
    rows = {"text": [f"text {i}" for i in range(10)], "label": ["a", "b"] * 5}
    dev = {"text": ["text 1", "text 3", "new"], "label": ["b", "b", "b"]}
    lines = preview_fit(rows, dev=dev).splitlines()
    assert lines[0].startswith("classify: 8 labelled texts")
    assert lines[2] == "2 training rows share a text with a dev row: no model is trained on them"
    assert lines[3] == "labels: a 62.5%, b 37.5%"
    with pytest.raises(InputError, match="nearly all rows of the train data share a text with"):
        preview_fit(rows, dev=rows)


def test_a_dry_run_says_what_would_be_fitted_and_writes_nothing(topics: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text("这是一段中文文本。\n" * 3 + "另一段文本\n")
    command = ("fit", topics / "train.csv", "--unlabelled", other, "--dry-run")
    done = run_cli(*command, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout == run_cli(*command).stdout
    for text in (
        "2 unlabelled texts",
        "labels: ",
        "of the same kind?",
        "LSA\n",
        "distilled network\n",
    ):
        assert text in done.stdout
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize(
    ("columns", "ngrams"), [(["text"], False), (["sentence1", "sentence2"], True)]
)
def test_n_grams_are_for_many_rows_where_no_network_can_be_taught(columns: list[str], ngrams: bool):
    rows = [
        dict.fromkeys(columns, f"word {i} {i % 7}") | {"label": "ab"[i % 2]} for i in range(4000)
    ]
    shown = preview_fit(rows)
    assert ("n-grams" in shown) is ngrams
    assert ("distilled network" in shown) is not ngrams


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--minutes", "0"], "minutes is 0"),
        (["--minutes", "1e9"], "minutes is 1000000000.0; it must be in (0, 10,080]"),
        (["--task", "tag"], "task is 'tag'; it must be one of classify, multilabel, regress"),
        (["--unlabelled", "missing.txt"], "no such file: missing.txt"),
        (["--model", "missing"], "missing"),
        (["--model", "any", "--size", "mini"], "does not apply to --model"),
        (["--dev", "missing.csv"], "missing.csv"),
        (["--label-column", "nothing"], "nothing"),
        (["--device", "cuda"], "--device cuda: PyTorch can use 0 GPUs"),
        (["--resume", "--overwrite"], "--resume continues, --overwrite starts over"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    options: list[str], message: str, topics: Path, tmp_path: Path
):
    output = tmp_path / "out"
    done = run_cli("fit", topics / "train.csv", "-o", output, *options)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not output.exists()


def test_a_mistake_leaves_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    texts, labels = ["a b", "c d"] * 4, ["x", "y"] * 4
    for mistake in ({"minutes": -1}, {"metric": "no"}, {"dev": "nosuch.csv"}):
        with pytest.raises(InputError):
            ownbert.fit(texts, labels, **mistake)
    with pytest.raises(InputError):
        ownbert.fit(texts, labels[:-1])
    assert not [*tmp_path.iterdir()]


def test_no_other_model_stays_in_the_folder(tmp_path: Path):
    """``--network`` would use it if no network was fitted."""
    for name in ("config.json", "ensemble.json"):
        tiny.made(tmp_path, "classification")
        (tmp_path / "ensemble.json").write_text('{"format": 1, "identity": {}, "members": []}')
        others = {"config.json", "ensemble.json"} - {name}
        (tmp_path / others.pop()).unlink()
        with pytest.raises(InputError, match="already contains a model"):
            ownbert.fit(["a", "b"], ["x", "y"], output=tmp_path)
        clear(tmp_path)
        assert not {"config.json", "ensemble.json", WEIGHTS} & {*tiny.contents(tmp_path)}


def test_a_model_in_the_folder_is_not_overwritten(topics: Path, pretrained: Path, tmp_path: Path):
    out = tmp_path / "out"
    ownbert.fit(topics / "train.csv", minutes=0.01, output=out, quiet=True)
    model = Path(shutil.copytree(pretrained, out / "work" / "network"))
    with pytest.raises(InputError, match="would be overwritten"):
        ownbert.fit(topics / "train.csv", output=out, model=model, overwrite=True, quiet=True)
    assert (model / "config.json").exists()


def test_a_model_without_float_weights_is_refused_at_once(
    topics: Path, pretrained: Path, tmp_path: Path
):
    bare, quantized = tmp_path / "bare", tmp_path / "quantized"
    shutil.copytree(pretrained, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    quantize(pretrained, quantized)
    for model, message in ((bare, "no weights"), (quantized, "quantized to int8 and cannot be tr")):
        with pytest.raises(InputError, match=message):
            preview_fit(topics / "train.csv", model=model)
        with pytest.raises(InputError, match=message):
            ownbert.fit(topics / "train.csv", model=model, output=tmp_path / "out")
        assert not (tmp_path / "out").exists()
