"""Copies of folders hold known files only, and nothing from outside of the folder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import ownbert
from ownbert.exceptions import InputError
from ownbert.finetuning.estimator import OwnBertClassifier
from ownbert.fitting.networks import copy_network
from ownbert.inference.finished_files import finished_files
from ownbert.views.linear_models import LinearView
from support.cli import refusal, run_cli
from support.tiny import COMMIT, NAMES_OF_A_MODEL, in_the_cache, made

SECRET = "a secret text"
ENDS = ("json", "safetensors")
FOREIGN = ("notes.json", "words.txt", "x.model", "work/rows.txt", "1_Pooling/rows.txt")


def sentence_model(folder: Path) -> Path:
    """A model with a module of sentence-transformers, and files that are none of it."""
    made(folder, num_hidden_layers=1)
    (folder / "modules.json").write_text('[{"type": "x.Pooling", "path": "1_Pooling"}]')
    for name in ("1_Pooling/config.json", *FOREIGN):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(SECRET if name in FOREIGN else "{}")
    return folder


def exported(source: Path, target: Path) -> None:
    assert run_cli("export", source, "--to", "torch", "-o", target).returncode == 0


def quantized(source: Path, target: Path) -> None:
    assert run_cli("quantize", source, "-o", target, "-q").returncode == 0


def embedder(source: Path, target: Path) -> None:
    ownbert.Embedder(source).save(target)


COPIES = {"export": exported, "quantize": quantized, "Embedder": embedder, "network": copy_network}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_has_known_files_only(copy: Callable[[Path, Path], None], tmp_path: Path):
    source, target = sentence_model(tmp_path / "model"), tmp_path / "copy"
    copy(source, target)
    files = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}
    assert {"config.json", "vocab.txt", "modules.json", "1_Pooling/config.json"} <= files
    assert not files & {*FOREIGN}
    assert not [name for name in files if SECRET.encode() in (target / name).read_bytes()]


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer_config.json", "1_Pooling"])
@pytest.mark.parametrize("copy", ["export", "quantize", "Embedder", "network"])
def test_a_link_that_leaves_the_folder_is_not_copied(name: str, copy: str, tmp_path: Path):
    source, target = sentence_model(tmp_path / "model"), tmp_path / "copy"
    whole = (source / name).is_dir()
    (source / name).rename(tmp_path / "elsewhere")
    (source / name).symlink_to(tmp_path / "elsewhere", target_is_directory=whole)
    if copy in ("export", "quantize"):
        line = refusal(copy, source, "-o", target)
    else:
        with pytest.raises(InputError) as refused:
            COPIES[copy](source, target)
        line = str(refused.value)
    assert "is a link to a file outside the folder" in line
    assert str(source / name) in line
    assert not target.exists()


def test_a_copy_writes_through_no_link(tmp_path: Path):
    source, target = sentence_model(tmp_path / "model"), tmp_path / "copy"
    target.mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    (target / "vocab.txt").symlink_to(tmp_path / "mine.txt")
    ownbert.Embedder(source).save(target)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (target / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()


def test_links_of_the_cache_of_the_hub_are_copied(tmp_path: Path):
    snapshot = in_the_cache(made, tmp_path)
    ownbert.Embedder(snapshot).save(tmp_path / "copy")
    assert {p.name for p in (tmp_path / "copy").iterdir()} == NAMES_OF_A_MODEL
    (tmp_path / "rows").write_text(SECRET)
    (snapshot / "README.md").symlink_to(tmp_path / "rows")
    with pytest.raises(InputError, match=rf"{COMMIT}/README.md is a link to a file outside"):
        ownbert.Embedder(snapshot).save(tmp_path / "other")


def test_a_blend_is_copied_with_all_that_it_reads(topics: Path, tmp_path: Path):
    """A self-trained linear model uses the view of another one, which may have no weight itself."""
    folder, copy = tmp_path / "best", tmp_path / "copy"
    ownbert.fit(topics / "train.csv", output=folder, minutes=0.01, quiet=True)
    blend = json.loads((folder / "blend.json").read_text())
    name = blend["members"][0]["folders"][0].removeprefix("members/")
    LinearView.load(folder / "members" / name).save(
        folder / "members" / "self-trained" / name, beside=True
    )
    blend["members"] = [{**blend["members"][0], "folders": [f"members/self-trained/{name}"]}]
    (folder / "blend.json").write_text(json.dumps(blend))
    OwnBertClassifier.from_pretrained(folder).save(copy)
    texts = (topics / "corpus.txt").read_text().splitlines()[:20]
    one, two = (ownbert.Predictor(each).predict_proba(texts) for each in (folder, copy))
    assert (one == two).all()
    linear = {f"members/{one}{name}/linear.{end}" for one in ("", "self-trained/") for end in ENDS}
    assert linear <= {name.as_posix() for name in finished_files(folder)}
    assert {p for p in copy.rglob("*") if p.is_file()} == {
        copy / name for name in finished_files(folder)
    }
    card = (folder / "README.md").read_text()
    rows = (topics / "train.csv").read_text().splitlines()[1:]
    assert not [row for row in rows if row.split(",", 1)[1] in card]
