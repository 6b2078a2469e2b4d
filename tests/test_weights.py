"""The files that hold tensors: what is read, and what is refused without being run."""

import io
import json
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ownbert.checkpoint import load
from ownbert.checkpoint.weights import read_weights
from ownbert.errors import InputError
from ownbert.inference.packed_encoder import PackedEncoder
from ownbert.nn.model import Model
from support.tiny import made, parameters, same


def test_pickled_tensors(tmp_path: Path):
    model = made(tmp_path, "mlm")
    path = tmp_path / "model.safetensors"
    for zipped in (True, False):
        weights = read_weights(tmp_path)[0]
        path.unlink(missing_ok=True)
        torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        assert same(parameters(load(tmp_path)), parameters(model))


def test_only_what_a_folder_lacks_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = made(tmp_path, "mlm")
    state = torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.init, "trunc_normal_", None)  # it cannot be called
        assert same(parameters(load(tmp_path)), parameters(model))
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(1)
    new = load(tmp_path, heads=("mlm", "nsp"))
    torch.manual_seed(1)
    drawn = Model(model.config, ("mlm", "nsp"))
    assert torch.equal(new.heads["nsp"].dense.weight, drawn.heads["nsp"].dense.weight)
    assert torch.equal(new.encoder.embeddings.word.weight, model.encoder.embeddings.word.weight)


def test_vectors_need_no_pooler(tmp_path: Path):
    made(tmp_path, "mlm")
    state = torch.get_rng_state()
    assert PackedEncoder(tmp_path, "cpu", "float32").model.pooler is None
    assert torch.equal(state, torch.get_rng_state())


class Malicious:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["torch", "old torch", "pickle"])
def test_a_pickle_that_would_run_is_refused(tmp_path: Path, form: str):
    made(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    trace, path = tmp_path / "trace", tmp_path / "pytorch_model.bin"
    content = {"embeddings.LayerNorm.weight": torch.ones(8), "more": Malicious(trace)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "torch")
    with pytest.raises(InputError, match=r"holds more than tensors.*nothing in it was run"):
        load(tmp_path)
    assert not trace.exists()
    torch.load(path, weights_only=False) if form != "pickle" else pickle.loads(path.read_bytes())
    assert trace.exists()  # so it would have run


@pytest.mark.parametrize("content", [[1], {"a": 1}, {1: torch.ones(1)}])
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: object):
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin must hold tensors by name"):
        read_weights(tmp_path)


def whole(zipped: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(3)}, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.integers(0, 600), st.binary(min_size=1, max_size=4))
def test_a_damaged_pickle_is_the_users_mistake(
    tmp_path_factory: pytest.TempPathFactory, zipped: bool, place: int, patch: bytes
):
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(whole(zipped))
    content[place : place + len(patch)] = patch
    (folder / "pytorch_model.bin").write_bytes(content)
    try:
        tensors = read_weights(folder)[0]
    except InputError:  # anything else would be a traceback
        return
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())


def shard(folder: Path) -> dict[str, str]:
    """Cut the weights in two files and an index of them."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    path.unlink()
    places = {n: f"model-{i % 2 + 1}-of-2.safetensors" for i, n in enumerate(sorted(weights))}
    for name in set(places.values()):
        save_file({n: weights[n] for n in weights if places[n] == name}, folder / name)
    write_index(folder, places)
    return places


def write_index(folder: Path, places: object) -> None:
    text = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(text)


def test_several_files(tmp_path: Path):
    model = made(tmp_path, "mlm")
    shard(tmp_path)
    assert same(parameters(load(tmp_path)), parameters(model))


def test_an_index_that_does_not_fit_its_files(tmp_path: Path):
    made(tmp_path, "mlm")
    places = shard(tmp_path)
    first = sorted(places)[0]
    write_index(tmp_path, {**places, "stray": places[first]})
    with pytest.raises(InputError, match="tensor stray is not in its files"):
        load(tmp_path)
    write_index(tmp_path, {n: place for n, place in places.items() if n != first})
    with pytest.raises(InputError, match=f"tensor {first} is in its files only"):
        load(tmp_path)
    write_index(tmp_path, {**places, first: "../model.safetensors"})
    with pytest.raises(InputError, match="the files must be in the same folder"):
        load(tmp_path)
    write_index(tmp_path, [1])
    with pytest.raises(InputError, match=r"weight_map is .*must be an object"):
        load(tmp_path)
    write_index(tmp_path, places)
    (tmp_path / places[first]).unlink()
    with pytest.raises(InputError, match=f"names {places[first]}, which is missing"):
        load(tmp_path)
