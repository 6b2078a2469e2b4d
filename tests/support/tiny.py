"""The tiny network and vocabulary of the tests of files, and what they do to a model folder."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = Tokenizer.blank([*SPECIAL, *"abcdef"])
CONFIG = EncoderConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=6,
    hidden_dropout_prob=0.2,
)
LABELS = ("zebra", "ant", "7")
COMMIT = "0" * 40
NAMES_OF_A_MODEL = {
    *("config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json"),
}


def made(
    folder: Path, *heads: str | HeadSpec, seed: int = 0, labels: Any = LABELS, **config: Any
) -> Model:
    torch.manual_seed(seed)
    model = Model(replace(CONFIG, **config), heads, labels=labels)
    for parameter in model.parameters():
        parameter.data.normal_()
    save(model, folder, tokenizer=TOKENIZER)
    return model.eval()


def in_the_cache(make: Callable[[Path], object], place: Path) -> Path:
    """The folder that ``make`` writes, as huggingface_hub keeps it: links to blobs."""
    snapshot = place / "models--someone--tiny" / "snapshots" / COMMIT
    make(snapshot)
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    for path in [*snapshot.iterdir()]:
        path.rename(blobs / path.name)
        path.symlink_to(Path("../../blobs", path.name))
    return snapshot


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def change_weights(folder: Path, **changes: Any) -> None:
    """Names are with __ for the dot; ... takes a tensor away."""
    path = folder / "model.safetensors"
    changed = {name.replace("__", "."): tensor for name, tensor in changes.items()}
    weights = {n: t for n, t in (load_file(path) | changed).items() if t is not ...}
    save_file(weights, path)


def parameters(model: Model) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
