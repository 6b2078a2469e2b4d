"""Google's TensorFlow checkpoints: what is in them, and what damage says."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.checkpoint import load, load_tokenizer
from ownbert.checkpoint.google import convert, crc32c, read_bundle
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from support import tensor_bundle as bundle
from support.cli import refusal, run_cli
from support.google import CONFIG, write_google

WORDS = "bert/embeddings/word_embeddings"


def test_the_checksum():
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720's polynomial, as its tables are checked
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
    data = np.random.default_rng(0).bytes(3001)
    for length in (0, 1, 2, 3, 255, 256, 257, 600, 3001):
        assert crc32c(data[:length]) == bundle.crc32c(data[:length])


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_of_every_type_and_shape(tmp_path: Path, shards: int):
    rng = np.random.default_rng(0)
    arrays = {
        f"layer_{i}/{name}": rng.normal(size=shape).astype(dtype)
        for i, (name, shape, dtype) in enumerate(
            [("a", (3, 4), "f4"), ("b", (7,), "f8"), ("c", (2, 3, 1), "f2"), ("d", (0, 4), "f4")]
            * 4
        )
    }
    arrays["step"] = np.array(12, dtype=np.int64)
    bundle.write_bundle(tmp_path / "a.ckpt", arrays, shards=shards)
    found = read_bundle(tmp_path / "a.ckpt", lambda name: True)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert torch.equal(found[name], torch.from_numpy(array)), name
    assert list(read_bundle(tmp_path / "a.ckpt", lambda name: name == "step")) == ["step"]


def test_a_folder_of_the_same_numbers(tmp_path: Path):
    arrays = write_google(tmp_path / "google")
    convert(tmp_path / "google" / "bert_model.ckpt", tmp_path / "out")
    model = load(tmp_path / "out")
    assert list(model.heads) == ["mlm", "nsp"]
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (8, 2)
    start = "bert/encoder/layer_1/attention/self/"
    qkv = np.concatenate([arrays[start + name + "/kernel"].T for name in ("query", "key", "value")])
    block = model.encoder.blocks[1]
    assert np.array_equal(block.attention.qkv.weight.detach(), qkv)  # pyright: ignore
    assert np.array_equal(
        block.attention_norm.weight.detach(),  # pyright: ignore
        arrays["bert/encoder/layer_1/attention/output/LayerNorm/gamma"],
    )
    assert np.array_equal(model.encoder.embeddings.word.weight.detach(), arrays[WORDS])
    nsp = model.heads["nsp"].dense.weight  # pyright: ignore
    assert np.array_equal(nsp.detach(), arrays["cls/seq_relationship/output_weights"])
    assert load_tokenizer(tmp_path / "out", config=model.config).config["do_lower_case"]
    transformers = pytest.importorskip("transformers")
    theirs, info = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values())
    # The equation of a layer, in TensorFlow's names: x W + b.
    x = torch.randn(3, 8)
    dense = theirs.bert.encoder.layer[0].intermediate.dense
    name = "bert/encoder/layer_0/intermediate/dense/"
    expected = x.numpy() @ arrays[name + "kernel"] + arrays[name + "bias"]
    assert np.allclose(dense(x).detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("further", "heads", "labels"),
    [
        ({"output_weights": (3, 8), "output_bias": (3,)}, ["classification"], 3),
        ({"cls/squad/output_weights": (2, 8), "cls/squad/output_bias": (2,)}, ["span"], 0),
        ({}, [], 0),
    ],
)
def test_fine_tuned_checkpoints(tmp_path: Path, further: dict, heads: list[str], labels: int):
    write_google(tmp_path / "google", heads=False, further=further)
    convert(tmp_path / "google", tmp_path / "out")
    model = load(tmp_path / "out")
    assert list(model.heads) == heads
    assert len(model.labels) == labels
    assert (model.pooler is None) == (heads == ["span"])


def test_capitals(tmp_path: Path):
    write_google(tmp_path / "google", tokens=["The", "the", "##Er"])
    convert(tmp_path / "google", tmp_path / "one")
    assert load_tokenizer(tmp_path / "one").backend.encode("The the").ids[1:-1] == [5, 6]
    convert(tmp_path / "google", tmp_path / "two", cased=False)
    assert load_tokenizer(tmp_path / "two").backend.encode("The the").ids[1:-1] == [6, 6]


def index_of(folder: Path) -> Path:
    return folder / "bert_model.ckpt.index"


def data_of(folder: Path) -> Path:
    return folder / "bert_model.ckpt.data-00000-of-00001"


def rewritten(change: Callable[[list], list], **options: int) -> Callable[[Path], None]:
    """Write an index with other entries: checksums of blocks are right, the entries are not."""

    def do(folder: Path) -> None:
        array = np.zeros((11, 8), dtype=np.float32)
        pairs = [(b"", bundle.header()), (WORDS.encode(), bundle.entry(array, 0))]
        index_of(folder).write_bytes(bundle.table(change(pairs), **options))

    return do


def entry_of(**changed: int) -> Callable[[Path], None]:
    array, at = np.zeros((11, 8), dtype=np.float32), changed.pop("offset", 0)
    return rewritten(lambda p: [p[0], (WORDS.encode(), bundle.entry(array, at, **changed))])


def cut(path: Callable[[Path], Path], size: int) -> Callable[[Path], None]:
    return lambda folder: path(folder).write_bytes(path(folder).read_bytes()[:size])


def flipped(path: Callable[[Path], Path], at: int) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        data = bytearray(path(folder).read_bytes())
        data[at] ^= 1
        path(folder).write_bytes(data)

    return do


def config_with(**values: object) -> Callable[[Path], None]:
    return lambda folder: (folder / "bert_config.json").write_text(json.dumps(CONFIG | values))


HUGE = bundle.field(1, 1) + bundle.field(2, bundle.field(2, bundle.field(1, 1 << 50)))
DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: index_of(f).unlink(), "no such file: .*ckpt.index"),
    (lambda f: data_of(f).unlink(), "no such file: .*data-00000-of-00001"),
    (lambda f: (f / "vocab.txt").unlink(), "no such file: .*vocab.txt"),
    (lambda f: (f / "bert_config.json").unlink(), "no such file: .*bert_config.json"),
    (cut(index_of, 20), "index is damaged or not a TensorFlow checkpoint: it has 20 bytes"),
    (cut(index_of, 900), "it does not end as a table does"),
    (flipped(index_of, 30), "a block does not match its checksum"),
    (flipped(index_of, -60), "a block does not match its checksum"),
    (cut(data_of, 1000), "data-00000-of-00001 is damaged or does not match its index: tensor"),
    (flipped(data_of, 70), "does not match its checksum"),
    (rewritten(lambda p: p, compression=1), "its blocks are compressed"),
    (rewritten(lambda p: p[1:]), "it has no header"),
    (rewritten(lambda p: [*p, p[1]]), "is there twice"),
    (rewritten(lambda p: [(b"", bundle.header(endianness=1)), p[1]]), "other byte order"),
    (rewritten(lambda p: [(b"", bundle.header(shards=1 << 40)), p[1]]), "data files"),
    (rewritten(lambda p: [p[0], (b"\xff", p[1][1])]), "a name is not text"),
    (rewritten(lambda p: [p[0], (b"a", HUGE)]), "a shape contains 1125899906842624"),
    (rewritten(lambda p: [p[0], (b"a", b"\x0b")]), "a field has the unknown type 3"),
    (rewritten(lambda p: [p[0], (b"a", b"\xff" * 11)]), "a number does not end"),
    (rewritten(lambda p: [p[0], (b"a", b"\x12\x7f")]), "127 bytes should follow, but 0 do"),
    (rewritten(lambda p: [p[0], (b"a", p[1][1] + bundle.field(7, b""))]), "stored in slices"),
    (entry_of(offset=1 << 62), "tensor .* has 352 bytes from 4,611,686,018,427,387,904 on"),
    (entry_of(size=1 << 62), "of shape .* has 4,611,686,018,427,387,904 bytes"),
    (entry_of(shard=3), "is in file 3 of 1"),
    (entry_of(dtype=7), "has an unsupported element type"),
    (config_with(hidden_size=16), "word_embeddings.weight has shape .* expected"),
    (config_with(num_hidden_layers=3), "missing tensor bert.encoder.layer.2"),
    (config_with(num_hidden_layers=1), "unexpected tensor bert.encoder.layer.1"),
    (config_with(vocab_size=3), "vocab.txt has 11 tokens, but the model 3"),
    (lambda f: (f / "other.index").write_bytes(b""), "contains 2 checkpoints; name one"),
]


def test_the_missing_checkpoint_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"no such file: .*other\.ckpt\.index"):
        convert(tmp_path / "other.ckpt", tmp_path / "out")


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damage_is_one_line(tmp_path: Path, damage: Callable[[Path], object], message: str):
    write_google(tmp_path / "google")
    damage(tmp_path / "google")
    name = "" if "contains 2" in message else "bert_model.ckpt"
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "google" / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_any_byte_of_the_index_may_be_another(tmp_path: Path):
    write_google(tmp_path / "google")
    whole = index_of(tmp_path / "google").read_bytes()
    rng = np.random.default_rng(0)
    prefix = tmp_path / "google" / "bert_model.ckpt"
    for at in rng.integers(0, len(whole) - 48, 30):  # the padding of the footer holds nothing
        data = bytearray(whole)
        data[at] ^= int(rng.integers(1, 256))
        index_of(tmp_path / "google").write_bytes(data)
        with pytest.raises(InputError):
            read_bundle(prefix, lambda name: True)
    for length in rng.integers(0, len(whole), 10):
        index_of(tmp_path / "google").write_bytes(whole[:length])
        with pytest.raises(InputError):
            read_bundle(prefix, lambda name: True)
    footer = whole[:-48] + b"\xff" * 20 + struct.pack("<Q", 0) * 2 + whole[-12:]
    index_of(tmp_path / "google").write_bytes(footer)
    with pytest.raises(InputError, match="index is damaged"):
        read_bundle(prefix, lambda name: True)


def test_the_command(tmp_path: Path):
    write_google(tmp_path / "google")
    checkpoint, out = tmp_path / "google" / "bert_model.ckpt", tmp_path / "out"
    assert "-o is needed" in refusal("convert", checkpoint)
    shown = run_cli("convert", checkpoint, "-o", out)
    config = EncoderConfig(**{k: v for k, v in CONFIG.items() if k != "directionality"})
    count = sum(p.numel() for p in Model(config, ["mlm", "nsp"]).parameters())
    assert f"2 layers, {count:,} parameters" in str(shown)
    assert f"{out} already contains files" in refusal("convert", checkpoint, "-o", out)
