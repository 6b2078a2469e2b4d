"""Half of a surrogate pair, which Python's strings can hold and UTF-8 cannot: one clear error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ownbert
from ownbert import Embedder, Explainer, InputError, Predictor, load_tokenizer
from ownbert.inspect.trace.model_trace import trace_folder
from support.tiny import made

HALF = "a \ud800"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half")
    for head in ("classification", "mlm", "span"):
        made(folder / head, head)
    return folder


def embedder(folder: Path) -> Embedder:
    return Embedder(folder / "mlm")


def hf_tokenizer(folder: Path) -> Any:
    return ownbert.BertTokenizer.from_pretrained(folder / "mlm")


CALLS: dict[str, Callable[[Path], Any]] = {
    "encode": lambda folder: embedder(folder).encode(["a", HALF]),
    "encode one": lambda folder: embedder(folder).encode(HALF),
    "encode query": lambda folder: embedder(folder).encode_query([HALF]),
    "encode stream": lambda folder: list(embedder(folder).stream(iter([HALF]))),
    "prompt": lambda folder: embedder(folder).encode(["a"], prompt=HALF),
    "embed": lambda folder: ownbert.embed(folder / "mlm", ["a b", HALF]),
    "fill": lambda folder: ownbert.fill(folder / "mlm", f"{HALF} [MASK]"),
    "fill several": lambda folder: ownbert.fill(folder / "mlm", ["[MASK]", f"{HALF} [MASK]"]),
    "predictor": lambda folder: Predictor(folder / "classification")(HALF),
    "predict": lambda folder: Predictor(folder / "classification").predict(["a", HALF]),
    "question": lambda folder: Predictor(folder / "span")(question="a", context=HALF),
    "evaluate": lambda folder: ownbert.evaluate(folder / "classification", [HALF], ["ant"]),
    "explain": lambda folder: Explainer(folder / "classification")([HALF]),
    "explain a mask": lambda folder: Explainer(folder / "mlm")([f"{HALF} [MASK]"]),
    "describe": lambda folder: ownbert.describe(folder / "classification", HALF),
    "trace": lambda folder: trace_folder(folder / "classification", HALF),
    "tokenizer": lambda folder: load_tokenizer(folder / "mlm").encode(HALF),
    "unknown words": lambda folder: load_tokenizer(folder / "mlm").unknown_words([HALF]),
    "BertTokenizer": lambda folder: hf_tokenizer(folder)(["a", HALF]),
    "token to id": lambda folder: hf_tokenizer(folder).convert_tokens_to_ids(["\ud800"]),
    "new token": lambda folder: hf_tokenizer(folder).add_tokens(["\ud800"]),
    "vocabulary": lambda folder: ownbert.learn_vocabulary(
        ["a b"] * 5 + [HALF], folder / "new", kind="blank"
    ),
    "store": lambda folder: ownbert.prepare(
        ["a b"] * 5 + [HALF], folder / "new", tokenizer=folder / "mlm"
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_half_a_character_is_refused(name: str, folder: Path):
    with pytest.raises(InputError, match=r"half (of )?a surrogate pair") as refused:
        CALLS[name](folder)
    assert "\n" not in str(refused.value)
    assert "/ownbert-texts" not in str(refused.value)
    assert not (folder / "new").exists()


def test_the_text_is_named(folder: Path):
    with pytest.raises(InputError, match=r"texts\[1\] contains half"):
        embedder(folder).encode(["a", HALF, "b"])
    with pytest.raises(InputError, match="the texts, line 2"):
        ownbert.learn_vocabulary(["a b", HALF], folder / "new", kind="blank")
