"""The committed outputs of Transformers, without Transformers."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ownbert import load
from ownbert.data.batch import from_padded

FOLDER = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "bert.npz") as arrays:
        return dict(arrays)


def test_outputs(golden: dict[str, np.ndarray], tmp_path: Path):
    (tmp_path / "config.json").write_text(str(golden["config"]))
    shapes = json.loads(str(golden["shapes"]))
    parts = torch.from_numpy(golden["weights"]).split([math.prod(s) for s in shapes.values()])
    named = zip(shapes, parts, strict=True)
    weights = {name: part.view(shapes[name]).clone() for name, part in named}
    save_file(weights, tmp_path / "model.safetensors")
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
        np.testing.assert_allclose(tensor, expected, atol=1e-5, rtol=1e-5, err_msg=name)
        assert expected.std() > 0.1


def test_the_script_makes_the_committed_file(golden: dict[str, np.ndarray]):
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("make_golden", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.make()
    assert made.keys() == golden.keys()
    for name, array in made.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, golden[name], atol=1e-6, err_msg=name)
        elif name != "versions":
            assert np.array_equal(array, golden[name]), name
