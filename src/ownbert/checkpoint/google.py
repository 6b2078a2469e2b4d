"""Google's BERT checkpoints (bert_model.ckpt) as model folders; reads TensorFlow's two-file
checkpoints without TensorFlow.

``NAME.index`` is a sorted table in LevelDB's format (blocks of keys and values with checksums); its
values locate tensors in ``NAME.data-00000-of-00001``. The files are untrusted: all offsets, sizes
and lengths are verified.

Source: tensorflow/core/protobuf/tensor_bundle.proto; tensorflow/core/util/tensor_bundle;
leveldb/doc/table_format.md.
"""

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ownbert.checkpoint import new_model, save
from ownbert.checkpoint.copying import copy_weights, require_blocks, require_fit
from ownbert.checkpoint.description import describe_config
from ownbert.checkpoint.model_files import CONFIG_KEYS
from ownbert.checkpoint.weights import require_finite
from ownbert.exceptions import InputError, in_short
from ownbert.files.input_files import refuse_same
from ownbert.files.json_files import read_json
from ownbert.files.text_files import refuse_unreadable
from ownbert.language.messages import Message
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
from ownbert.protobuf import DamagedError, Reader
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import read_vocabulary

CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"
# Optimizer slots of tensors, and counters.
_TRAINING = re.compile(r"/(adam_[mv]|Adam(_1)?|Momentum|ExponentialMovingAverage)$")
_COUNTERS = ("global_step", "beta1_power", "beta2_power", "_CHECKPOINTABLE_OBJECT_GRAPH")
_WORDS = "bert/embeddings/word_embeddings"
# Suffixes of tensor names with ours in Transformers' naming; matrices (inputs, outputs) are
# transposed.
_LEAVES = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
}
# Classes of Transformers, by a tensor that identifies them.
_ARCHITECTURES = {
    "classifier.weight": "BertForSequenceClassification",
    "qa_outputs.weight": "BertForQuestionAnswering",
    "cls.seq_relationship.weight": "BertForPreTraining",
    "cls.predictions.bias": "BertForMaskedLM",
}
# Minimum share of tokens with capital letters in a cased vocabulary: a third of the 29,000 tokens
# in Google's cased vocabularies, and only special tokens and a few stray letters in others.
_CASED = 0.01
INDEX = ".index"
_MAGIC, _FOOTER = 0xDB4775248B80FB57, 48
# Maximum size of an index; one of a thousand tensors has 60 KB.
_LARGEST_INDEX = 1 << 28
_MOST_SHARDS, _MOST_DIMENSIONS = 10_000, 16
# TensorFlow's numbers of element types. Other types (text, resources) contain no weights.
_DTYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}


def convert(
    checkpoint: str | Path,
    output: str | Path,
    *,
    config: str | Path | None = None,
    vocabulary: str | Path | None = None,
    cased: bool | None = None,
) -> Model:
    """Convert a checkpoint of google-research/bert to a model folder.

    Args:
        checkpoint: ``bert_model.ckpt``, one of its files, or a folder with a single checkpoint.
        output: a new or empty folder.
        config: configuration file; by default bert_config.json beside the checkpoint.
        vocabulary: vocabulary file; by default vocab.txt beside the checkpoint.
        cased: whether capitals are kept; by default whether the vocabulary has any.

    Raises:
        InputError: a file is missing or damaged, files belong to different models, or ``output`` is
            not empty.
    """
    prefix, target = _prefix(Path(checkpoint)), Path(output)
    path = prefix.with_name(prefix.name + INDEX)
    if not path.is_file():
        raise InputError("no such file: {path}", path)
    config = prefix.parent / CONFIG if config is None else Path(config)
    vocabulary = prefix.parent / VOCABULARY if vocabulary is None else Path(vocabulary)
    refuse_same((config, vocabulary), target)
    if target.is_dir() and any(target.iterdir()):
        raise InputError("{target} already contains files; choose another folder", target)
    values = {**read_json(config, check=CONFIG_KEYS), "model_type": "bert"}
    tokens = read_vocabulary(vocabulary)
    theirs = read_bundle(prefix, lambda name: not _TRAINING.search(name) and name not in _COUNTERS)
    if _WORDS not in theirs:
        raise InputError(
            "{path}: there is no tensor {words}; only BERT checkpoints are supported", path, _WORDS
        )
    tensors = dict(_renamed(name, tensor) for name, tensor in theirs.items())
    require_finite(tensors, path)
    marker = next((name for name in _ARCHITECTURES if name in tensors), None)
    values["architectures"] = [_ARCHITECTURES[marker] if marker else "BertModel"]
    if marker == "classifier.weight":
        values["id2label"] = {str(i): f"LABEL_{i}" for i in range(len(tensors[marker]))}
    description = describe_config(values, config)
    if not description.pooler:  # Google's checkpoints have one, trained or not
        tensors = {name: t for name, t in tensors.items() if not name.startswith("bert.pooler.")}
    if len(tokens) > description.config.vocab_size:
        message = (
            "{vocabulary} has {count:,} tokens, but the model {vocab_size:,}; they do not "
            "belong together"
        )
        raise InputError(message, vocabulary, len(tokens), description.config.vocab_size)
    if cased is None:
        words = [token for token in tokens if not token.startswith("[")]
        cased = sum(token != token.lower() for token in words) > _CASED * len(words)
    longest = description.config.max_length
    tokenizer = Tokenizer.wordpiece(tokens, do_lower_case=not cased, max_length=longest)
    require_blocks(tensors, description.weight_map, path, description.config)
    with shapes_alone():
        model = new_model(description, pooler=description.pooler)
    report = copy_weights(model, tensors, description.family.weight_map, description=description)
    require_fit(report, path)
    save(model, target, tokenizer=tokenizer, architecture=description.architecture)
    return model.eval()


def _prefix(path: Path) -> Path:
    """The path of a checkpoint without the extensions of its files."""
    if path.is_dir():
        index_files = sorted(path.glob("*" + INDEX))
        if len(index_files) != 1:
            message = "{path} contains {count} checkpoints; name one, without .index"
            raise InputError(message, path, len(index_files))
        path = index_files[0]
    return path.with_name(re.sub(r"\.(index|data-\d+-of-\d+|meta)$", "", path.name))


def _renamed(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """A tensor with its name in Transformers, transposed if it is the matrix of a dense layer."""
    *path, leaf = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    if path == ["cls", "squad"]:
        path = ["qa_outputs"]
    if not path and leaf in ("output_weights", "output_bias"):
        path = ["classifier"]
    if path == ["cls", "predictions"] and leaf == "output_bias":
        return "cls.predictions.bias", tensor
    if leaf.endswith("_embeddings"):
        path, leaf = [*path, leaf], "weight"
    tensor = tensor.t() if leaf == "kernel" and tensor.ndim == 2 else tensor
    return ".".join((*path, _LEAVES.get(leaf, leaf))), tensor


@dataclass(frozen=True)
class _Entry:
    """The location of a tensor: a shard, and a byte range of its file."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_bundle(prefix: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint by TensorFlow's names; ``prefix`` is the path of its files
    without ``.index`` and ``.data-...``."""
    path = prefix.with_name(prefix.name + INDEX)
    refuse_unreadable(path)
    try:
        shards, entries = _read_index(path)
    except DamagedError as error:
        raise InputError(
            "{path} is damaged or not a TensorFlow checkpoint: {error}", path, error
        ) from None
    entries = {name: entry for name, entry in entries.items() if wanted(name)}
    tensors = {}
    for shard in sorted({entry.shard for entry in entries.values()}):
        data = prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}")
        refuse_unreadable(data)
        in_shard = {name: entry for name, entry in entries.items() if entry.shard == shard}
        try:
            tensors |= _read_data(data, in_shard)
        except DamagedError as error:
            raise InputError(
                "{data} is damaged or does not match its index: {error}", data, error
            ) from None
    return {name: tensors[name] for name in entries}


def _read_data(path: Path, entries: dict[str, _Entry]) -> dict[str, Tensor]:
    """Read tensors of one file. They do not overlap, so their total size is limited by the file."""
    length, end, tensors = path.stat().st_size, 0, {}
    with path.open("rb") as file:
        for name, entry in sorted(entries.items(), key=lambda item: item[1].offset):
            if entry.dtype not in _DTYPES:
                raise DamagedError(
                    Message("tensor {name} has an unsupported element type", in_short(name))
                )
            if entry.offset < end or entry.offset + entry.size > length:
                raise DamagedError(
                    Message(
                        "tensor {name} has {size:,} bytes from {offset:,} on, but the file has "
                        "{length:,}",
                        in_short(name),
                        entry.size,
                        entry.offset,
                        length,
                    )
                )
            end = entry.offset + entry.size
            file.seek(entry.offset)
            data = file.read(entry.size)
            if _masked(crc32c(data)) != entry.checksum:
                raise DamagedError(
                    Message("tensor {name} does not match its checksum", in_short(name))
                )
            dtype = _DTYPES[entry.dtype]
            flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0)
            tensors[name] = flat.to(dtype).reshape(entry.shape)
    return tensors


def _read_index(path: Path) -> tuple[int, dict[str, _Entry]]:
    """The number of shards, and the entries of tensors by name."""
    size = path.stat().st_size
    if not _FOOTER <= size <= _LARGEST_INDEX:
        raise DamagedError(Message("it has {size:,} bytes", size))
    data = path.read_bytes()
    if struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise DamagedError("it does not end as a table does")
    footer = Reader(data[-_FOOTER:])
    _block(data, *_handle(footer))  # metaindex of further blocks, which is empty
    shards, entries = 0, {}
    for _, value in _block(data, *_handle(footer)):
        for key, entry in _block(data, *_handle(Reader(value))):
            if not key:
                shards = _read_header(entry)
                continue
            try:
                name = key.decode()
            except UnicodeDecodeError:
                raise DamagedError("a name is not text") from None
            if name in entries:
                raise DamagedError(Message("tensor {name} is there twice", in_short(name)))
            entries[name] = _read_entry(name, entry)
    if not shards:
        raise DamagedError("it has no header")
    for name, entry in entries.items():
        if entry.shard >= shards:
            raise DamagedError(
                Message(
                    "tensor {name} is in file {shard} of {shards}",
                    in_short(name),
                    entry.shard,
                    shards,
                )
            )
    return shards, entries


def _handle(reader: Reader) -> tuple[int, int]:
    """The offset and the size of a block."""
    return reader.varint(), reader.varint()


def _block(data: bytes, offset: int, size: int) -> list[tuple[bytes, bytes]]:
    """Keys and values of a block, in which keys share prefixes with preceding keys."""
    if offset + size + 5 > len(data) - _FOOTER:
        raise DamagedError(
            Message(
                "a block has {size:,} bytes from {offset:,} on, but the file has {count:,}",
                size,
                offset,
                len(data),
            )
        )
    content, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
    if _masked(crc32c(content + trailer[:1])) != struct.unpack("<I", trailer[1:])[0]:
        raise DamagedError("a block does not match its checksum")
    if trailer[0]:
        raise DamagedError("its blocks are compressed; save it again without compression")
    if size < 4:
        raise DamagedError(Message("a block has {size} bytes", size))
    restarts = struct.unpack("<I", content[-4:])[0]
    end = size - 4 * (restarts + 1)
    if end < 0:
        raise DamagedError(
            Message("a block of {size:,} bytes has {restarts:,} restarts", size, restarts)
        )
    reader, key, entries = Reader(content[:end]), b"", []
    while reader.more:
        shared, suffix, length = reader.varint(), reader.varint(), reader.varint()
        if shared > len(key):
            raise DamagedError(
                Message("a key shares {shared:,} bytes with one of {count:,}", shared, len(key))
            )
        key = key[:shared] + reader.take(suffix)
        entries.append((key, reader.take(length)))
    return entries


def _read_header(data: bytes) -> int:
    """The number of data files (BundleHeaderProto)."""
    shards, endianness = 1, 0
    for number, value in Reader(data).fields():
        if number == 1 and isinstance(value, int):
            shards = value
        elif number == 2 and isinstance(value, int):
            endianness = value
    if endianness:
        raise DamagedError("it was written on a machine with the other byte order")
    if not 1 <= shards <= _MOST_SHARDS:
        raise DamagedError(Message("it has {shards:,} data files", shards))
    return shards


def _read_entry(name: str, data: bytes) -> _Entry:
    """BundleEntryProto."""
    numbers, shape = dict.fromkeys((1, 3, 4, 5, 6), 0), ()
    for number, value in Reader(data).fields():
        if number == 7:
            raise DamagedError(
                Message(
                    "tensor {name} is stored in slices, which are not supported", in_short(name)
                )
            )
        if number == 2 and isinstance(value, bytes):
            shape = _read_shape(value)
        elif number in numbers:
            whole = value if isinstance(value, int) else int.from_bytes(value[:8], "little")
            numbers[number] = whole
    dtype, shard, offset, size, checksum = numbers.values()
    entry = _Entry(dtype, shape, shard, offset, size, checksum)
    if dtype in _DTYPES and math.prod(shape) * _DTYPES[dtype].itemsize != size:
        raise DamagedError(
            Message(
                "tensor {name} of shape {shape} has {size:,} bytes", in_short(name), shape, size
            )
        )
    return entry


def _read_shape(data: bytes) -> tuple[int, ...]:
    """TensorShapeProto."""
    shape = []
    for number, value in Reader(data).fields():
        if number == 2 and isinstance(value, bytes):
            sizes = [size for field, size in Reader(value).fields() if field == 1]
            size = sizes[-1] if sizes else 0
            if not isinstance(size, int) or size >= 1 << 40 or len(shape) == _MOST_DIMENSIONS:
                raise DamagedError(Message("a shape contains {size}", in_short(size)))
            shape.append(size)
    return tuple(shape)


def _masked(checksum: int) -> int:
    """A checksum as stored; masking avoids problems with checksums of data that contain
    checksums."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache
def _table() -> np.ndarray:
    """(65,536) the effect of two bytes on a checksum."""
    values = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(0x82F63B78), values >> 1)
    return values


def crc32c(data: bytes) -> int:
    """The checksum CRC-32C (RFC 3720, appendix B.4). Long data are split into parts of equal length
    with vectorised checksums: plain Python would take minutes for a base model."""
    if len(data) < 2:
        first = np.array([0xFFFFFFFF ^ byte for byte in data], dtype=np.uint32)
        return int(_append_zeros(first, 1)[0]) ^ 0xFFFFFFFF if data else 0
    parts = 1 << max(0, min(16, len(data).bit_length() - 8))
    pairs = len(data) // parts // 2
    length = 2 * pairs
    head = np.frombuffer(data, "<u2", parts * pairs).reshape(parts, pairs)
    table, sums = _table(), np.full(parts, 0xFFFFFFFF, dtype=np.uint32)
    for column in np.ascontiguousarray(head.T):
        sums = table[(sums ^ column) & 0xFFFF] ^ (sums >> 16)
    sums ^= np.uint32(0xFFFFFFFF)
    while len(sums) > 1:  # merge neighbours into parts of twice the length
        sums = _append_zeros(sums[::2], length) ^ sums[1::2]
        length *= 2
    rest = data[length:]
    if not rest:
        return int(sums[0])
    return int(_append_zeros(sums, len(rest))[0]) ^ crc32c(rest)


def _append_zeros(sums: np.ndarray, count: int) -> np.ndarray:
    """Checksums after ``count`` zero bytes were appended to their data. The effect of a byte is a
    linear map of 32 bits, and that of two bytes its square."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    # The map of one zero bit, as images of the bits of a checksum; three squarings give that of a
    # byte.
    step = np.where(bits & 1, np.uint32(0x82F63B78), bits >> np.uint32(1))
    for _ in range(3):
        step = _apply_map(step, step)
    while count:
        if count & 1:
            sums = _apply_map(step, sums)
        step, count = _apply_map(step, step), count >> 1
    return sums


def _apply_map(step: np.ndarray, sums: np.ndarray) -> np.ndarray:
    result = np.zeros_like(sums)
    for bit, image in enumerate(step):
        result ^= np.where((sums >> np.uint32(bit)) & 1, image, np.uint32(0))
    return result
