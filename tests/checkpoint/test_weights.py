"""The files that hold tensors: what is read, and what is refused without being run."""

import io
import json
import pickle
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ownbert.checkpoint import describe, load
from ownbert.checkpoint.weights import read_weights
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.nn.undrawn import truncated_normal_
from ownbert.run.packed_encoder import PackedEncoder
from support.tiny import LABELS, made, parameters, same


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
    state = torch.get_rng_state()
    torch.manual_seed(1)
    drawn = parameters(new)
    for name in ("heads.nsp.dense", "pooler.dense"):  # in the order of a model's modules
        weight = drawn[f"{name}.weight"]
        assert torch.equal(weight, truncated_normal_(torch.empty(weight.shape), 0.02))
        assert not drawn[f"{name}.bias"].any()
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(new.encoder.embeddings.word.weight, model.encoder.embeddings.word.weight)


@pytest.mark.parametrize(
    ("head", "changes"),
    [
        (HeadSpec("classification", pooling="lstm", dense="tanh", segments="gru", ngrams=50), {}),
        (HeadSpec("classification", pooling="attention"), {"layer_gate": "sum"}),
        (HeadSpec("tokens", features=(3, 4), dense="gelu", dense_norm=True), {}),
        pytest.param(
            *(HeadSpec("tokens", crf=True), {}),
            marks=pytest.mark.skipif(find_spec("torchcrf") is None, reason="pytorch-crf"),
        ),
    ],
)
def test_a_new_head_is_drawn_as_in_a_new_model(
    tmp_path: Path, head: HeadSpec, changes: dict[str, str]
):
    made(tmp_path, "mlm")
    description = describe(tmp_path)
    description = replace(description, config=replace(description.config, **changes))
    torch.use_deterministic_algorithms(True)  # new memory is full of NaN
    try:
        found = load(description, heads=[head], labels=LABELS)
    finally:
        torch.use_deterministic_algorithms(False)
    drawn = parameters(Model(description.config, [head], labels=LABELS))
    there = parameters(load(tmp_path, heads=[]))
    new = {name: p for name, p in parameters(found).items() if name not in there}
    assert len(new) > 4
    for name, tensor in new.items():
        one, two = (t.double().square().mean().sqrt().item() for t in (tensor, drawn[name]))
        assert two / 6 <= one <= two * 6, name


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
    with pytest.raises(InputError, match=r"contains more than tensors.*no code in it was run"):
        load(tmp_path)
    assert not trace.exists()
    torch.load(path, weights_only=False) if form != "pickle" else pickle.loads(path.read_bytes())
    assert trace.exists()  # so it would have run


@pytest.mark.parametrize("content", [[1], {"a": 1}, {1: torch.ones(1)}])
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: object):
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin must contain tensors by name"):
        read_weights(tmp_path)


def whole(zipped: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(3)}, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@settings(max_examples=60)
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
