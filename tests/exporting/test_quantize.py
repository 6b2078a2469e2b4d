"""``ownbert quantize``: the folder, that all that uses folders opens it, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ownbert
from ownbert.checkpoint import load, save
from ownbert.checkpoint.weights import QUANTIZED
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.exporting.quantize import REPORT, quantize
from ownbert.families import family_of
from ownbert.inference.embedder import Embedder
from ownbert.nn.model import Model
from ownbert.nn.prepack import EXACT, NONE, PAIRS, QuantizedLinear, products_here
from ownbert.vision import vit
from support.cli import printed_rows, refusal, run_cli
from support.tiny import CONFIG, TOKENIZER, change_config, contents, made

TEXTS = ["a b c", "f e", "d d a b"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    made(folder, "classification")
    return folder


@pytest.fixture(scope="module")
def quantized(classifier: Path) -> Path:
    output, before = classifier.parent / "quantized", contents(classifier)
    done = run_cli("quantize", classifier, "-o", output)
    assert done.returncode == 0, done.stderr
    notes = done.stderr.splitlines()
    assert len(notes) == (products_here() == NONE)
    assert all("will be smaller but no faster on this processor" in note for note in notes)
    cosine = float(done.stdout.split(",")[0].removeprefix("lowest cosine "))
    assert 0.9 < cosine <= 1
    assert contents(classifier) == before
    return output


def copied(folder: Path, target: Path) -> Path:
    target.mkdir()
    for name, data in contents(folder).items():
        (target / name).write_bytes(data)
    return target


def change(folder: Path, **changes: torch.Tensor | None) -> None:
    """Names are with __ for the dot; None takes a tensor away."""
    path = folder / QUANTIZED
    tensors = load_file(path)
    for name, tensor in changes.items():
        named = name.replace("__", ".")
        assert named in tensors
        del tensors[named]
        if tensor is not None:
            tensors[named] = tensor
    save_file(tensors, path)


def test_answers_are_near(classifier: Path, quantized: Path):
    both = [ownbert.Predictor(folder).predict_proba(TEXTS) for folder in (classifier, quantized)]
    assert np.abs(both[0] - both[1]).max() < 0.1
    assert not np.array_equal(*both)
    rows = [printed_rows("predict", folder, *TEXTS) for folder in (classifier, quantized)]
    assert [row["label"] for row in rows[0]] == [row["label"] for row in rows[1]]


def test_vectors_are_near(classifier: Path, quantized: Path):
    one, two = (
        Embedder(folder).encode(TEXTS, normalize=True) for folder in (classifier, quantized)
    )
    assert (one * two).sum(1).min() > 0.98


def test_the_report(quantized: Path):
    report = json.loads((quantized / REPORT).read_text())
    assert 0.9 < report["least_cosine"] <= report["mean_cosine"] <= 1
    head = report["heads"]["classification"]
    assert 0 < head["equal"] <= head["answers"] == report["texts"]
    card = (quantized / "README.md").read_text()
    assert f"{report['least_cosine']:.4f}" in card
    assert f"{head['equal']} of {head['answers']} predictions are the same" in card
    assert report["products"] == products_here()


@pytest.mark.parametrize(
    ("products", "sentence"),
    [
        (EXACT, ""),
        (PAIRS, "weights were rounded more coarsely"),
        (NONE, "no faster than the float model"),
    ],
)
def test_what_the_processor_does_is_in_the_card(
    products: str, sentence: str, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.exporting.quantize.products_here", lambda: products)
    notes: list[str] = []
    found = quantize(classifier, tmp_path / "int8", say=notes.append)
    assert found.products == products
    card = (tmp_path / "int8" / "README.md").read_text()
    assert sentence in card
    assert ("The processor used for this comparison" in card) == bool(sentence)
    expected = [True] if products == NONE else []
    assert ["but no faster on this processor" in note for note in notes] == expected


def test_small_values_beside_large_ones_are_kept(classifier: Path, quantized: Path, tmp_path: Path):
    """As of networks with built-in linear models: some channels of what is attended to are a
    thousand times as large as others that matter as much."""
    model = made(tmp_path, "classification")
    for block in model.encoder.blocks:
        large = slice(2 * CONFIG.hidden_size + CONFIG.hidden_size // 2, None)
        block.attention.qkv.weight.data[large] *= 1000
        block.attention.qkv.bias.data[large] *= 1000
        block.attention.output.weight.data[:, CONFIG.hidden_size // 2 :] /= 1000
    save(model, tmp_path / "large", tokenizer=TOKENIZER)
    found = quantize(tmp_path / "large", tmp_path / "int8").heads["classification"]
    plain = json.loads((quantized / REPORT).read_text())["heads"]["classification"]
    assert found.largest_change < 2 * plain["largest_change"] + 0.02


def test_it_opens_in_python(classifier: Path, quantized: Path, tmp_path: Path):
    model = ownbert.load(quantized)
    ids = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        logits = [one(input_ids=ids).logits for one in (model, ownbert.load(classifier))]
    assert torch.allclose(*logits, atol=0.2 * float(logits[1].abs().max()))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(InputError, match="cannot be saved"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "config.json").exists()


@pytest.mark.parametrize("head", ["tokens", "span", "choice", "mlm", "nsp"])
def test_every_head(head: str, tmp_path: Path):
    made(tmp_path / "float", head)
    found = quantize(tmp_path / "float", tmp_path / "int8")
    assert found.heads[head].largest_change < 0.5
    equal, answers = found.heads[head].equal, found.heads[head].answers
    assert equal is not None
    # Random weights find all places in a text nearly equally likely.
    assert (0 if head == "span" else answers / 2) <= equal <= answers


def test_numbers_and_several_labels(tmp_path: Path):
    several = "multi_label_classification"
    for name, width, problem in (("a", None, "regression"), ("b", None, several), ("c", 1, ...)):
        made(tmp_path / name, HeadSpec("classification", output=width))
        labels = {} if width is None else {"id2label": {"0": "a"}}
        change_config(tmp_path / name, problem_type=problem, **labels)
        found = quantize(tmp_path / name, tmp_path / f"{name}-int8").heads["classification"]
        assert (found.equal is None) == (problem != several) == (found.error is not None)
        assert found.answers == 7
        assert found.largest_change > 0


@pytest.mark.parametrize("model_type", ["albert", "mobilebert", "roberta", "distilbert"])
def test_families(model_type: str, tmp_path: Path):
    family = family_of(model_type, "")
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 12, "max_position_embeddings": 20}
    if model_type == "mobilebert":
        sizes |= {"embedding_size": 4, "intra_bottleneck_size": 4, "true_hidden_size": 4}
    config = family.read_config({**family.defaults, **sizes})
    torch.manual_seed(0)
    save(Model(config, (), model_type=model_type), tmp_path / "float")
    found = quantize(tmp_path / "float", tmp_path / "int8")
    assert found.least_cosine > 0.9
    layers = load(tmp_path / "int8").encoder.blocks.modules()
    kinds = {type(layer) for layer in layers}
    assert QuantizedLinear in kinds
    assert not any(issubclass(kind, torch.nn.Linear) for kind in kinds)


def test_it_is_smaller(tmp_path: Path):
    config = replace(CONFIG, hidden_size=64, intermediate_size=256)
    save(Model(config), tmp_path / "float", tokenizer=TOKENIZER)
    before = contents(tmp_path / "float")
    found = quantize(tmp_path / "float", tmp_path / "int8")
    assert contents(tmp_path / "float") == before
    assert found.bytes_after == (tmp_path / "int8" / QUANTIZED).stat().st_size
    assert found.bytes_after < 0.4 * found.bytes_before


def test_images_and_translation_are_refused(tmp_path: Path):
    sizes: dict[str, Any] = {"hidden_size": 8, "layers": 1, "heads": 2, "num_classes": 3}
    save(vit.make_model(image_size=8, patch_size=4, **sizes), tmp_path / "image")
    line = refusal("quantize", tmp_path / "image", "-o", tmp_path / "out")
    assert "only models of texts can be quantized" in line
    made(tmp_path / "marian")
    change_config(tmp_path / "marian", model_type="marian")
    line = refusal("quantize", tmp_path / "marian", "-o", tmp_path / "out")
    assert "use it with ownbert translate" in line
    assert not (tmp_path / "out").exists()


def test_texts_of_a_file(classifier: Path, tmp_path: Path):
    (tmp_path / "texts.txt").write_text("a b\nc d e\nf f\nb\n")
    found = quantize(classifier, tmp_path / "out", data=tmp_path / "texts.txt")
    assert (found.texts, found.source) == (2, "texts.txt")
    (tmp_path / "one.txt").write_text("a b\n")
    assert quantize(classifier, tmp_path / "single", data=tmp_path / "one.txt").texts == 1
    (tmp_path / "unknown.txt").write_text("hello\nworld\n")
    done = run_cli("quantize", classifier, tmp_path / "unknown.txt", "-o", tmp_path / "unknown")
    assert "[UNK]: the model's vocabulary contains no word of these texts" in done.stderr


def test_it_is_not_trained(quantized: Path, classifier: Path, tmp_path: Path):
    (tmp_path / "train.csv").write_text("text,label\n" + "a b,1\nc d,2\n" * 4)
    rows = ["--train", tmp_path / "train.csv", "--dev", tmp_path / "train.csv"]
    line = refusal("finetune", "classify", "--model", quantized, *rows, "-o", tmp_path / "out")
    assert "quantized to int8 and cannot be trained" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["quantize", "export"])
def test_it_is_not_made_into_another(command: str, quantized: Path, tmp_path: Path):
    line = refusal(command, quantized, "-o", tmp_path / "out")
    assert "quantized to int8 and cannot be trained" in line
    assert not (tmp_path / "out").exists()


def test_refusals(classifier: Path, tmp_path: Path):
    assert "-o is needed" in refusal("quantize", classifier)
    assert "already contains files" in refusal("quantize", classifier, "-o", classifier.parent)
    float_weights = copied(classifier, tmp_path / "taken")
    line = refusal("quantize", classifier, "-o", float_weights, "--overwrite")
    assert "contains float weights" in line
    (tmp_path / "empty.txt").write_text("")
    line = refusal("quantize", classifier, tmp_path / "empty.txt", "-o", tmp_path / "out")
    assert "is empty" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"int8__smooth__blocks__0__attention__qkv": torch.ones(3)}, "does not match the model"),
        ({"int8__smooth__blocks__0__attention__qkv": torch.zeros(8)}, "positive float32"),
        ({"bert__encoder__layer__0__output__dense__weight": None}, "not the int8 matrix"),
        ({"bert__encoder__layer__0__output__dense__bias": None}, "missing tensor"),
        ({"int8__scale__bert__encoder__layer__0__output__dense__weight": None}, "int8"),
    ],
)
def test_damaged_folders(
    changes: dict[str, torch.Tensor | None], message: str, quantized: Path, tmp_path: Path
):
    folder = copied(quantized, tmp_path / "damaged")
    change(folder, **changes)
    assert message in refusal("predict", folder, "a b")


def test_damaged_files(quantized: Path, tmp_path: Path):
    folder = copied(quantized, tmp_path / "damaged")
    data = (folder / QUANTIZED).read_bytes()
    (folder / QUANTIZED).write_bytes(data[:200])
    assert "cannot be read" in refusal("predict", folder, "a b")
    (folder / QUANTIZED).unlink()
    assert "no such file" in refusal("predict", folder, "a b")
    (folder / QUANTIZED).write_bytes(data)
    change_config(folder, ownbert_quantization=...)
    assert "cannot be trained, exported or quantized" in refusal("predict", folder, "a b")
    change_config(folder, ownbert_quantization={"weights": "int4"})
    assert "ownbert_quantization" in refusal("predict", folder, "a b")
