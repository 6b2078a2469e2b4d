"""Classification of pictures: scikit-learn's digits from scratch, and what surrounds it."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from ownbert import InputError, evaluate, finetune, predict
from ownbert.checkpoint import describe
from ownbert.cli import app
from ownbert.finetuning.finetune import preview_finetuning
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.labelled_splits import LabelledSplits
from ownbert.inference.open_folder import open_folder
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe, TaskSettings, Vit
from ownbert.train.loop import Interrupted
from ownbert.vision.image_files import ImageSource
from ownbert.vision.image_task import ImageTask, choose_sizes
from ownbert.vision.patches import sinusoidal_positions
from ownbert.vision.pixels import PROCESSOR, Processor
from support.cli import run_cli
from support.floats import assert_close
from support.plots import matplotlib_installed

Arrays = tuple[np.ndarray, np.ndarray]
SMALL: dict[str, Any] = {"hidden_size": 32, "layers": 1, "heads": 2, "quiet": True}


@pytest.fixture(scope="module")
def digits() -> tuple[Arrays, Arrays]:
    """1,500 pictures to learn and 297 to be measured by, 8 x 8."""
    found = load_digits()
    images, labels = found.images / 16, found.target
    order = np.random.default_rng(0).permutation(len(images))
    learnt, held = order[:1500], order[1500:]
    return (images[learnt], labels[learnt]), (images[held], labels[held])


@pytest.fixture(scope="module")
def three_digits(digits: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
    """Those pictures that show 0, 1 or 2: 429 and 108."""
    learnt, held = ((images[labels < 3], labels[labels < 3]) for images, labels in digits)
    return learnt, held


@pytest.fixture(scope="module")
def model(three_digits: tuple[Arrays, Arrays], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on three digits; do not write into it."""
    folder = tmp_path_factory.mktemp("digits") / "model"
    with matplotlib_installed():
        learn(folder, three_digits, shift=0.0, layers=1)
    return folder


def learn(folder: Path, digits: tuple[Arrays, Arrays], **options: Any) -> None:
    sizes: dict[str, Any] = {"hidden_size": 64, "layers": 2, "precision": "float32"}
    sizes |= {"epochs": 9, "batch_size": 32, "learning_rate": 2.5e-3, "quiet": True}
    given = sizes | options
    finetune("image", train=digits[0], dev=digits[1], output=folder, **given)


@pytest.fixture(scope="module")
def folders(digits: tuple[Arrays, Arrays], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``train`` and ``test``: a folder of pictures in files for each of the digits 0, 1 and 2."""
    root = tmp_path_factory.mktemp("files")
    for part, (images, labels), count in (("train", digits[0], 12), ("test", digits[1], 5)):
        for label in (0, 1, 2):
            folder = root / part / f"number {label}"
            folder.mkdir(parents=True)
            for i, image in enumerate(images[labels == label][:count]):
                Image.fromarray((image * 255).astype("u1")).save(folder / f"{i:02}.png")
    return root


def write_idx(folder: Path, name: str, arrays: Arrays) -> Path:
    images, labels = (np.round(arrays[0] * 255).astype("u1"), arrays[1].astype("u1"))
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, array.ndim]) + np.asarray(array.shape, ">u4").tobytes()
        (folder / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder / f"{name}-images-idx3-ubyte"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_it_learns_the_digits(digits: tuple[Arrays, Arrays], tmp_path: Path):
    learn(tmp_path / "model", digits)
    assert evaluate(tmp_path / "model", digits[1]).accuracy > 0.95


def test_it_learns_three_digits(model: Path, three_digits: tuple[Arrays, Arrays], tmp_path: Path):
    scores = evaluate(model, three_digits[1], output=tmp_path / "measures.json")
    assert scores.accuracy > 0.95
    assert next(iter(scores.values)) == "accuracy"
    assert json.loads((tmp_path / "measures.json").read_text())["accuracy"] == scores.accuracy


def test_the_folder_is_one_of_transformers(model: Path, three_digits: tuple[Arrays, Arrays]):
    from transformers import ViTForImageClassification, ViTImageProcessor

    pictures = np.round(three_digits[1][0][:40] * 255).astype("u1")
    pixels = ViTImageProcessor.from_pretrained(model)(
        list(pictures[..., None]), return_tensors="pt", input_data_format="channels_last"
    )
    theirs = ViTForImageClassification.from_pretrained(model).eval()
    with torch.no_grad():
        expected = theirs(**pixels).logits.softmax(-1).numpy()
    task = ImageTask()
    found = np.stack(open_folder(model)(list(task.stream(pictures))))
    assert np.abs(found - expected).max() < 1e-5
    assert theirs.config.id2label == {i: str(i) for i in range(3)}


def test_files_of_the_folder(model: Path):
    there = {path.name for path in model.iterdir()}
    assert {"config.json", "model.safetensors", PROCESSOR, "confusion.png", "recipe.yaml"} <= there
    card = (model / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert "It starts from scratch." in card
    assert "reads 8 x 8 pixels in grey, in patches of 2 x 2" in card
    assert "AutoImageProcessor, AutoModelForImageClassification" in card
    assert "Tokenizer" not in card
    assert "| training | rows given in Python | 429 images |" in card
    assert "| model.vit.hidden_size | 64 |" in card
    assert describe(model).config.initializer_range == 0.125


def test_answers_to_pictures_of_every_kind(
    model: Path, folders: Path, three_digits: tuple[Arrays, Arrays], tmp_path: Path
):
    out = tmp_path / "out.jsonl"
    assert predict(model, folders / "test", out) == 15
    found = rows(out)
    files = sorted((folders / "test").rglob("*.png"))
    assert [row["file"] for row in found] == list(map(str, files))
    right = [row["label"] == Path(row["file"]).parent.name[-1] for row in found]
    assert sum(right) >= 14
    assert predict(model, files[3], tmp_path / "one.jsonl") == 1
    # In bfloat16, which is the default where answers agree, the last digits depend on the batch.
    exact = {"precision": "float32"}
    assert predict(model, folders / "test", tmp_path / "exact.jsonl", **exact) == 15
    assert predict(model, files[3], tmp_path / "alone.jsonl", **exact) == 1
    assert rows(tmp_path / "alone.jsonl")[0] == rows(tmp_path / "exact.jsonl")[3]
    images = write_idx(tmp_path, "new", three_digits[1])
    assert predict(model, images, tmp_path / "idx.csv") == 108
    lines = (tmp_path / "idx.csv").read_text().splitlines()
    assert lines[0] == ",".join(["label", "score"])
    labels = [line.split(",")[0] for line in lines[1:]]
    accuracy = np.mean(np.asarray(labels) == three_digits[1][1].astype(str))
    assert evaluate(model, images).accuracy == pytest.approx(accuracy)


def test_answers_may_lie_among_the_pictures(model: Path, folders: Path, tmp_path: Path):
    given = tmp_path / "given"
    shutil.copytree(folders / "test", given)
    out = given / "answers.jsonl"
    for _ in range(2):
        assert predict(model, given, out) == 15
        assert len(rows(out)) == 15


def test_colours_and_other_sizes_are_made_to_fit(model: Path, three_digits: tuple[Arrays, Arrays]):
    predictor, task = open_folder(model), ImageTask()
    grey = np.round(three_digits[1][0][:20] * 255).astype("u1")
    expected = np.stack(predictor(list(task.stream(grey))))
    colour = np.stack(predictor(list(task.stream(np.stack([grey] * 3, -1)))))
    assert_close(colour, expected)
    large = np.stack(predictor(list(task.stream(grey.repeat(3, 1).repeat(3, 2)))))
    assert (large.argmax(1) == expected.argmax(1)).mean() > 0.9


def test_a_folder_is_learnt_and_gone_on_from(folders: Path, tmp_path: Path):
    given = {"train": folders / "train", "dev": folders / "test", "max_steps": 4}
    finetune("image", output=tmp_path / "new", **given, **SMALL)
    said = describe(tmp_path / "new")
    assert said.labels == ("number 0", "number 1", "number 2")
    image = said.config.image
    assert image is not None
    assert (image.size, image.patch, image.channels) == ((8, 8), (2, 2), 1)
    from_it = {**given, "model": tmp_path / "new", "quiet": True}
    finetune("image", output=tmp_path / "more", **from_it)
    assert describe(tmp_path / "more").config == said.config
    assert Processor.load(tmp_path / "more") == Processor.load(tmp_path / "new")
    card = (tmp_path / "more" / "README.md").read_text()
    assert "It starts from new." in card
    assert "base_model" not in card  # a link of the hub
    assert "| training | train | 36 images | " in card


def test_a_stopped_run_ends_as_one_that_was_not(
    digits: tuple[Arrays, Arrays], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What is drawn for a picture depends on seed, epoch and its number alone."""
    part = [(images[:90], labels[:90]) for images, labels in digits]
    changes = {"flip": True, "crop": 0.7, "batch_size": 32, "epochs": 3}
    given = {"train": part[0], "dev": part[1], **changes, **SMALL}
    finetune("image", output=tmp_path / "whole", **given)
    whole, seen = LabelledSplits.evaluate, [0]

    def evaluate(splits: LabelledSplits, *args: Any, **named: Any):
        seen[0] += 1
        if seen[0] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(splits, *args, **named)

    with monkeypatch.context() as patched:
        patched.setattr(LabelledSplits, "evaluate", evaluate)
        with pytest.raises(Interrupted):
            finetune("image", output=tmp_path / "parts", **given)
    with pytest.raises(InputError, match="training data"):
        finetune("image", output=tmp_path / "parts", resume=True, **{**given, "train": part[1]})
    finetune("image", output=tmp_path / "parts", resume=True, **given)
    weights = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    # And without the changes it is another model.
    finetune("image", output=tmp_path / "plain", shift=0.0, **{**given, "flip": None, "crop": None})
    assert (tmp_path / "plain" / "model.safetensors").read_bytes() != weights[0].read_bytes()


def test_training_pictures_change_with_the_epoch_and_dev_pictures_never(folders: Path):
    options = {
        "train": str(folders / "train"),
        "dev": str(folders / "test"),
        "task.name": "image",
        "flip": True,
        "image_size": "16",
    }
    run = FinetuningRun(resolve(FinetuneRecipe, options=options))
    learnt, held = run.splits.train_data, run.splits.dev_data
    assert held is not None
    first = learnt.example(0, 3).patches
    assert first is not None
    np.testing.assert_array_equal(first, learnt.example(0, 3).patches)
    assert not np.array_equal(first, learnt.example(1, 3).patches)
    np.testing.assert_array_equal(held.example(0, 3).patches, held.example(1, 3).patches)
    assert first.shape == (64, 4)
    assert learnt.sizes.tolist() == [65] * 36
    # Mean and deviation are those of the training pictures.
    values = np.concatenate([example.patches for example in learnt.examples])
    assert abs(values.mean()) < 0.01
    assert values.std() == pytest.approx(1, abs=0.01)


def test_seeds_are_averaged_and_share_what_was_measured(folders: Path, tmp_path: Path):
    given = {"train": folders / "train", "dev": folders / "test", "max_steps": 2, **SMALL}
    finetune("image", output=tmp_path / "it", folds=2, **given)
    processors = [Processor.load(tmp_path / "it" / f"fold-{i}") for i in (1, 2)]
    assert processors[0] == processors[1]
    found = np.stack(open_folder(tmp_path / "it")(list(ImageTask().stream(folders / "test"))))
    alone = [
        np.stack(
            open_folder(tmp_path / "it" / f"fold-{i}")(list(ImageTask().stream(folders / "test")))
        )
        for i in (1, 2)
    ]
    assert_close(found, np.mean(alone, 0))
    assert predict(tmp_path / "it", folders / "test", tmp_path / "out.jsonl") == 15


@pytest.mark.parametrize(
    ("size", "count", "vit", "expected"),
    [
        ((28, 28), 2, Vit(), ((28, 28), (4, 4))),
        ((8, 8), 2, Vit(), ((8, 8), (2, 2))),
        ((29, 20), 2, Vit(), ((32, 20), (4, 4))),
        ((300, 200), 2, Vit(), ((96, 96), (12, 12))),
        ((28, 28), 2, Vit(patch=(7,)), ((28, 28), (7, 7))),
        ((28, 28), 2, Vit(patch=(5, 7)), ((30, 28), (5, 7))),
        ((300, 200), 2, Vit(image_size=(64,)), ((64, 64), (8, 8))),
    ],
)
def test_sizes_of_a_new_model(size, count: int, vit: Vit, expected):
    pictures = [ImageSource(np.zeros(size, "u1"), "", "", size, 1)] * count
    assert choose_sizes(pictures, vit) == expected


def test_pictures_of_several_sizes_become_squares():
    pictures = [
        ImageSource(np.zeros(s, "u1"), "", "", s, 1) for s in ((40, 40), (60, 60), (44, 40))
    ]
    assert choose_sizes(pictures, Vit()) == ((42, 42), (6, 6))


def test_the_dry_run_shows_pictures(folders: Path, tmp_path: Path):
    given = ("--train", folders / "train", "--dev", folders / "test", "--patch", "4")
    done = run_cli("finetune", "image", *given, "--dry-run", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert not (tmp_path / "out").exists()
    assert "36 training and 15 dev images, 3 labels, from scratch" in text
    assert "labels, dev: number 0 33.3%, number 1 33.3%, number 2 33.3%" in text
    assert "images: 8 x 8 pixels, read as 8 x 8 grey, in 4 patches of 4 x 4; mean 0." in text
    shown = text.partition("as the model sees them:\n")[2].splitlines()
    assert [line for line in shown if line.startswith("number")] == [
        f"number {i}:" for i in (0, 0, 1, 2, 2)
    ]
    assert "@" in "".join(shown)


def test_copies_are_told(folders: Path, digits: tuple[Arrays, Arrays]):
    images, labels = digits[0][0][:20], digits[0][1][:20].copy()
    both = (np.concatenate([images, images[:1]]), np.append(labels, (labels[0] + 1) % 10))
    text = preview_finetuning("image", train=both, dev=(images[:5], labels[:5]))
    assert "1 training images are copies of earlier ones with another label" in text
    assert "5 of 5 dev images are training images too" in text
    text = preview_finetuning("image", train=str(folders / "train"), dev=str(folders / "train"))
    assert "36 of 36 dev images are training images too" in text


@pytest.mark.slow
def test_mistakes_are_one_line(folders: Path, model: Path, tmp_path: Path):
    train = ("--train", folders / "train")
    alone = tmp_path / "alone"
    (alone / "one").mkdir(parents=True)
    Image.new("L", (8, 8)).save(alone / "one" / "a.png")
    unknown = tmp_path / "unknown"
    (unknown / "number 9").mkdir(parents=True)
    Image.new("L", (8, 8)).save(unknown / "number 9" / "a.png")
    image = ("finetune", "image", "-o", tmp_path / "out")
    words = tmp_path / "bert"
    words.mkdir()
    (words / "config.json").write_text('{"model_type": "bert", "vocab_size": 30}')
    text = tmp_path / "a.csv"
    text.write_text("label,text\na,b\nb,c\n")
    tries: list[tuple[tuple[object, ...], str]] = [
        (
            (*image, "--train", alone),
            "all rows have the label 'one'; at least two labels are needed",
        ),
        ((*image, *train, "--dev", unknown), "a.png: label 'number 9' is not in the training data"),
        ((*image, *train, "--text-column", "x"), "No such option"),
        ((*image, *train, "data.text_column=x"), "a text column does not apply to image"),
        ((*image, *train, "data.max_length=9"), "data.max_length does not apply to image"),
        ((*image, *train, "optim.adversarial=1"), "optim.adversarial does not apply to image"),
        ((*image, *train, "task.crf=true"), "task.crf does not apply to image"),
        (
            (*image, *train, "--patch", "3", "--image-size", "8"),
            "must be a multiple of the patch size 3",
        ),
        ((*image, *train, "--heads", "3"), "hidden_size 128 must be a multiple of"),
        ((*image, *train, "--crop", "0"), "task.crop is 0.0; it must be in (0, 1]"),
        ((*image, *train, "--model", words), "reads texts, but image needs an image model"),
        ((*image, *train, "--model", model, "--layers", "3"), "model.vit is for a new model"),
        ((*image, "--train", text), "labelled images are a folder of class folders"),
        ((*image,), "train is needed"),
        (
            ("finetune", "classify", "--model", model, "--train", text, "-o", tmp_path / "out"),
            "reads images, but classify needs a text model",
        ),
        (("predict", model, "--input", text, "-o", tmp_path / "o.jsonl"), "a.csv is not an image"),
        (
            ("evaluate", model, "--data", folders / "test", "--text-column", "x"),
            "a text column does not apply to image",
        ),
        (("evaluate", model, "--data", folders / "test"), "label 'number 0' is not in the model"),
    ]
    runner = CliRunner()
    for options, message in tries:
        try:
            found = runner.invoke(app, list(map(str, options)))
            said = str(found.exception) if isinstance(found.exception, InputError) else found.output
        except InputError as error:
            said = str(error)
        assert message in " ".join(said.split()), (options, said)
        assert "\n" not in said or "No such option" in said
    assert not (tmp_path / "out").exists()
    done = run_cli(*image, "--train", alone)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_settings_of_pictures_are_refused_by_other_tasks():
    given = {"model": "model", "train": "train.csv", "output": "none"}
    with pytest.raises(InputError, match=r"task\.flip does not apply to classify"):
        finetune("classify", flip=True, **given)
    with pytest.raises(InputError, match=r"model\.vit does not apply to classify"):
        finetune("classify", patch="4", **given)


def test_texts_are_measured_by_the_labels_of_the_model(classifier: Path):
    with pytest.raises(InputError, match="data, row 1: label 'a label' is not in the model"):
        evaluate(classifier, (["a text"], ["a label"]))


def test_pictures_of_a_vit_that_says_nothing_of_its_task(model: Path, tmp_path: Path, folders):
    for path in model.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    values = json.loads((tmp_path / "config.json").read_text())
    del values["ownbert_task"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    predict(tmp_path, folders / "test", tmp_path / "out.jsonl")
    predict(model, folders / "test", tmp_path / "expected.jsonl")
    assert rows(tmp_path / "out.jsonl") == rows(tmp_path / "expected.jsonl")


def test_so_many_of_each_label(digits: tuple[Arrays, Arrays], tmp_path: Path):
    finetune(
        "image", train=digits[0], output=tmp_path / "out", labels_per_class=3, max_steps=1, **SMALL
    )
    assert (
        "| training | rows given in Python | 30 images |"
        in (tmp_path / "out" / "README.md").read_text()
    )


def test_settings_say_what_they_are():
    for values in ({"shift": 1.0}, {"shift": -0.1}, {"crop": 1.5}):
        with pytest.raises(InputError, match="it must be in"):
            TaskSettings(**values)
    for values in ((0,), (1, 2, 3)):
        with pytest.raises(InputError, match=r"model\.vit\.patch is"):
            Vit(patch=values)
    assert Vit(image_size=(28,)).image_size == (28, 28)


def test_real_pictures_are_read_in_seconds(shared_data: Path):
    begun = time.process_time()  # the machine may be busy
    folder = shared_data / "fashion-mnist-20k"
    found = ImageTask().read(folder / "train-images-idx3-ubyte.gz")
    assert len(found) == 20_000
    assert time.process_time() - begun < 20


def test_a_new_model_knows_where_a_patch_is():
    table = sinusoidal_positions((3, 5), 16)
    assert table.shape == (15, 16)
    assert table.abs().max() <= 1
    # The nearer two patches, the more alike; no two are the same.
    alike = table @ table.T
    assert (alike.argmax(1) == torch.arange(15)).all()
    first = alike[0].view(3, 5)
    assert first[0, 0] > first[0, 1] > first[0, 2]
    assert first[0, 0] > first[1, 0] > first[2, 0]
    assert sinusoidal_positions((2, 2), 6).shape == (4, 6)
