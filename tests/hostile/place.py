"""Tiny valid inputs of every command, made once, and what a command must not do to them."""

import json
import random
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hostile.commands import IN, TRAINED
from hostile.forks import run
from ownbert import learn_vocabulary, prepare
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.inference.shards import DealtRows, Shard
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from support.google import write_google

TOPICS = ("red", "green", "blue")
State = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Place:
    """A folder with a folder of inputs in it; commands run in folders beside those."""

    root: Path

    @property
    def inputs(self) -> Path:
        return self.root / "in"

    def need(self, arguments: tuple[str | bytes, ...]) -> None:
        """Make the folders that the arguments name, if no case before has."""
        for argument in arguments:
            text = argument if isinstance(argument, str) else ""
            for start in range(len(text)):
                if text.startswith(IN, start):
                    self.made(text[start + len(IN) :].split("/")[0])

    def made(self, name: str) -> Path:
        """The input of that name; folders of models are made by their own commands."""
        path = self.inputs / name
        if not path.exists() and name in TRAINED:
            command = TRAINED[name]
            self.need(command)
            folder = self.root / f"make-{name}"
            folder.mkdir()
            done = run([*command, "-o", f"{IN}{name}"], folder)
            assert done.code == 0, (command, done.err, done.out)
            assert path.is_dir(), done.out
        return path

    def folder(self, name: str) -> Path:
        """A new working folder."""
        path = self.root / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path


def state(folder: Path) -> State:
    """What stands below a folder, and what changes with the content of each file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        # A folder's times change with the temporary files in it, and a pipe's when it is read.
        kept = stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)
        own = (about.st_size, about.st_mtime_ns, about.st_ctime_ns) if kept else ()
        found[str(path.relative_to(folder))] = (about.st_ino, about.st_mode, *own)
    return found


def make_place(root: Path) -> Place:
    """Files of every kind, a vocabulary, a token store and an untrained network."""
    place = Place(root)
    folder = place.inputs
    folder.mkdir(parents=True)
    rng = random.Random(7)
    for name, write in _FILES.items():
        write(folder / name, rng)
    learn_vocabulary(folder / "corpus.txt", folder / "vocab", kind="blank")
    prepare(folder / "corpus.txt", folder / "tokens", tokenizer=folder / "vocab", processes=1)
    tokenizer = Tokenizer.load(folder / "vocab")
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
    )
    save(Model(config, ("mlm", "nsp")), folder / "bert", tokenizer=tokenizer)
    return place


def _words(rng: random.Random, topic: str) -> str:
    own = [f"{topic}{rng.randint(0, 5)}" for _ in range(4)]
    return " ".join([*own, f"w{rng.randint(0, 9)}", "9"])


def _corpus(path: Path, rng: random.Random) -> None:
    lines = [" ".join(_words(rng, TOPICS[(i + j) % 3]) for j in range(3)) for i in range(120)]
    path.write_text("\n".join(lines) + "\n")


def _table(header: str, cells: Callable[[random.Random, int], list[str]], rows: int = 36):
    def write(path: Path, rng: random.Random) -> None:
        lines = [",".join(cells(rng, i)) for i in range(rows)]
        path.write_text("\n".join([header, *lines]) + "\n")

    return write


def _json_lines(row: Callable[[random.Random, int], dict], rows: int = 24):
    def write(path: Path, rng: random.Random) -> None:
        path.write_text("".join(json.dumps(row(rng, i)) + "\n" for i in range(rows)))

    return write


def _tags(path: Path, rng: random.Random) -> None:
    lines = []
    for _ in range(40):
        for word in _words(rng, rng.choice(TOPICS)).split():
            lines.append(f"{word}\t{'B-red' if word.startswith('red') else 'O'}")
        lines.append("")
    path.write_text("\n".join(lines))


def _questions(path: Path, rng: random.Random) -> None:
    paragraphs = []
    for i in range(24):
        text = _words(rng, TOPICS[i % 3])
        answer = text.split()[1]
        answers = [{"text": answer, "answer_start": text.index(answer)}]
        asked = {"id": str(i), "question": f"w{i % 10}", "answers": answers}
        paragraphs.append({"context": text, "qas": [asked]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))


def _images(path: Path, rng: random.Random) -> None:
    draw = np.random.default_rng(0)
    labels = np.arange(24) % 3
    images = draw.integers(0, 80, (24, 8, 8)).astype("u1") + (60 * labels[:, None, None]).astype(
        "u1"
    )
    np.savez(path, images=images, labels=labels)


def _picture(path: Path, rng: random.Random) -> None:
    from PIL import Image

    Image.fromarray(np.arange(64, dtype="u1").reshape(8, 8)).save(path)


def _numbers(path: Path, rng: random.Random) -> None:
    eye = [[1.0, 0.0], [0.0, 1.0]]
    path.write_text(json.dumps({"inputs": eye, "query": eye, "key": eye, "value": eye}))


def _google(path: Path, rng: random.Random) -> None:
    write_google(path)


def _sequences(path: Path, rng: random.Random) -> None:
    words = random.Random(3)  # the same in both files
    path.write_text("".join(f"w{words.randint(0, 9)} w{words.randint(0, 9)}\n" for _ in range(40)))


def _parts(path: Path, rng: random.Random) -> None:
    """What two shards of predict leave."""
    path.mkdir()
    for number in (1, 2):
        dealt = DealtRows(Shard(number, 2))
        part = dealt.shard.path(path / "out.jsonl")
        lines = list(dealt.take([{"text": f"w{i}"} for i in range(9)], dict))
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        dealt.write_manifest(part, lambda: {"model": []})


_FILES: dict[str, Callable[[Path, random.Random], object]] = {
    "corpus.txt": _corpus,
    "train.csv": _table("label,text", lambda r, i: [TOPICS[i % 3], _words(r, TOPICS[i % 3])]),
    "dev.csv": _table("label,text", lambda r, i: [TOPICS[i % 3], _words(r, TOPICS[i % 3])], 18),
    "labels.csv": _table(
        "labels,text", lambda r, i: ["|".join(TOPICS[: i % 3 + 1]), _words(r, TOPICS[i % 3])]
    ),
    "ratings.csv": _table("score,text", lambda r, i: [str(i % 5 + 0.5), _words(r, TOPICS[i % 3])]),
    "pairs.csv": _table("anchor,positive", lambda r, i: [_words(r, TOPICS[i % 3])] * 2),
    "questions.json": _questions,
    "choices.jsonl": _json_lines(
        lambda r, i: {"prompt": f"w{i % 10}", "choices": [*TOPICS], "label": i % 3}
    ),
    "tags.conll": _tags,
    "images.npz": _images,
    "seven.png": _picture,
    "numbers.json": _numbers,
    "google": _google,
    "parts": _parts,
    "source.txt": _sequences,
    "target.txt": _sequences,
}
