"""Fine-tuning with word features: CoNLL columns and lists in jsonl, by the command line."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ownbert import InputError, Predictor, evaluate
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.model import Model
from ownbert.serve.served_model import ServedModel
from ownbert.text.tokenizer import Tokenizer
from support.cli import run_cli
from support.tiny import SPECIAL, change_config

Sentence = tuple[list[str], list[str], list[str], list[str]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing, and files in which the answers follow from features alone."""
    folder, rng = tmp_path_factory.mktemp("features"), random.Random(0)
    tokenizer = Tokenizer.blank([*SPECIAL, *(f"w{i}" for i in range(20))])
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    save(Model(config, ["mlm", "nsp"]), folder / "bert", tokenizer=tokenizer)
    for name, count in (("train", 100), ("dev", 30)):
        sentences = [_sentence(rng) for _ in range(count)]
        rows = ["\n".join(map("\t".join, zip(*one, strict=True))) for one in sentences]
        (folder / f"{name}.conll").write_text("\n\n".join(rows) + "\n")
        lines = [json.dumps(_labelled(*one)) for one in sentences]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _sentence(rng: random.Random) -> Sentence:
    """Words, parts of speech, amounts, and tags: the nouns of a large amount."""
    words = [f"w{rng.randrange(20)}" for _ in range(rng.randint(2, 8))]
    pos, size = ([rng.choice(of) for _ in words] for of in (("N", "V"), ("low", "high")))
    pairs = zip(pos, size, strict=True)
    return words, pos, size, ["B-x" if pair == ("N", "high") else "O" for pair in pairs]


def _labelled(words: list[str], pos: list[str], size: list[str], _: Any) -> dict[str, Any]:
    label = "verbs" if 2 * pos.count("V") > len(pos) else "nouns"
    return {"words": words, "pos": pos, "size": size, "label": label}


def finetuned(base: Path, task: str, ending: str, output: Path, *options: object) -> Path:
    files = ("--train", base / f"train.{ending}", "--dev", base / f"dev.{ending}")
    given = ("--epochs", 6, "--learning-rate", 0.02, "--quiet", *options)
    done = run_cli("finetune", task, "--model", base / "bert", *files, "-o", output, *given)
    assert done.returncode == 0, done.stderr
    return output


def refused(*arguments: object) -> str:
    done = run_cli(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


@pytest.fixture(scope="module")
def tagger(base: Path) -> Path:
    return finetuned(base, "tag", "conll", base / "tagger", "--feature-columns", "2,3")


def test_tags_of_conll_columns(base: Path, tagger: Path, tmp_path: Path):
    folder = tagger
    task = json.loads((folder / "config.json").read_text())["ownbert_task"]
    assert task["features"] == {"2": ["N", "V"], "3": ["high", "low"]}
    assert evaluate(folder, base / "dev.conll").f1 > 0.95
    done = run_cli("predict", folder, base / "dev.conll")
    assert done.returncode == 0
    first = json.loads(done.stdout.splitlines()[0])
    lines = (base / "dev.conll").read_text().split("\n\n")[0].splitlines()
    assert first["words"] == [line.split("\t")[0] for line in lines]
    assert first["tags"] == [line.split("\t")[3] for line in lines]
    # In memory, by the same names; a tag that training never saw counts as none.
    rows = [{"words": ["w1", "w2"], "2": ["N", "N"], "3": ["high", tag]} for tag in ("low", "?")]
    assert [tags[0] for tags in Predictor(folder).predict(rows)] == ["B-x", "B-x"]
    two = tmp_path / "two.conll"
    two.write_text("w1\tN\n\n")
    assert "has no column '3' (--feature-columns)" in refused("predict", folder, two)
    text = tmp_path / "plain.txt"
    text.write_text("w1 w2\n")
    assert "so it needs a table" in refused("predict", folder, text)


def test_windows_of_long_sentences(tagger: Path):
    """Each word has its own features in every window."""
    rng = random.Random(1)
    pos, size = ([rng.choice(of) for _ in range(60)] for of in (("N", "V"), ("low", "high")))
    row = {"words": ["w3"] * 60, "2": pos, "3": size}
    pairs = list(zip(pos, size, strict=True))
    wanted = ["B-x" if pair == ("N", "high") else "O" for pair in pairs]
    assert Predictor(tagger).predict([row])[0] == wanted


def test_labels_of_lists_in_jsonl(base: Path, tmp_path: Path):
    options = ("--feature-columns", "pos, size")
    folder = finetuned(base, "classify", "jsonl", tmp_path / "out", *options)
    assert evaluate(folder, base / "dev.jsonl").accuracy > 0.8
    done = run_cli("predict", folder, base / "dev.jsonl")
    assert len(done.stdout.splitlines()) == 30
    predictor = Predictor(folder)
    rows = [
        {"text": "w1 w2 w3", "pos": f"{tag} {tag} {tag}", "size": "low low low"} for tag in "NV"
    ]
    assert predictor.predict(rows).tolist() == ["nouns", "verbs"]
    assert predictor.predict(rows[0]) == "nouns"
    served = ServedModel("m", folder)
    served.warm_up()
    assert [*np.asarray(served.predictor.decide(served.rows(rows).items)[0])] == [
        *predictor.predict_proba(rows)[0]
    ]
    with pytest.raises(InputError, match="has no column 'pos'"):
        predictor.predict("w1 w2 w3")
    with pytest.raises(InputError, match="3 words, but 2 tags in column 'size'"):
        predictor.predict({**rows[0], "size": "low low"})
    assert "cannot be exported" in refused("export", folder, "-o", tmp_path / "onnx")
    change_config(
        folder,
        ownbert_task={
            **json.loads((folder / "config.json").read_text())["ownbert_task"],
            "features": {"pos": ["N"], "size": ["low"]},
        },
    )
    assert "do not agree" in refused("predict", folder, base / "dev.jsonl")


def test_texts_that_are_too_long_are_cut_at_their_end(base: Path, tmp_path: Path):
    options = ("--feature-columns", "pos", "--pooling", "first", "--epochs", 1)
    folder = finetuned(base, "classify", "jsonl", tmp_path / "out", *options)
    head = json.loads((folder / "config.json").read_text())["ownbert_heads"][0]
    assert (head["pooling"], head["dense"]) == ("first", "tanh")
    predictor = Predictor(folder)
    row = {"text": " ".join(["w1"] * 50), "pos": " ".join(["N"] * 50)}
    short = {"text": " ".join(["w1"] * 14), "pos": " ".join(["N"] * 14)}
    one, two = predictor.predict_proba([row, short])
    assert one == pytest.approx(two, abs=1e-6)


def _table(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], Path]:
    def write(base: Path, folder: Path) -> Path:
        rows = [json.loads(line) for line in (base / "train.jsonl").read_text().splitlines()]
        lines = [json.dumps({**row, **change(row)}) for row in rows]
        (folder / "t.jsonl").write_text("\n".join(lines) + "\n")
        return folder / "t.jsonl"

    return write


@pytest.mark.parametrize(
    ("write", "options", "words"),
    [
        (_table(lambda row: {}), ["--feature-columns", "srl"], "has no column 'srl'"),
        (_table(lambda row: {}), ["--feature-columns", "pos,pos"], "used twice"),
        (
            _table(lambda row: {"pos": row["pos"][1:]}),
            ["--feature-columns", "pos"],
            "line 1: ",
        ),
        (
            _table(lambda row: {"second": "w1"}),
            ["--feature-columns", "pos", "--second-column", "second", "--text-column", "words"],
            "feature columns belong to single texts",
        ),
        (
            _table(lambda row: {}),
            ["--feature-columns", "pos", "--long", "windows"],
            "with feature columns; use task.long cut",
        ),
        (
            _table(lambda row: {}),
            ["--feature-columns", "pos", "--pooling", "lstm"],
            "not lstm",
        ),
    ],
)
def test_mistakes(
    write: Callable[[Path, Path], Path], options: list[str], words: str, base: Path, tmp_path: Path
):
    train = write(base, tmp_path)
    start = ("finetune", "classify", "--model", base / "bert", "--train", train)
    assert words in refused(*start, "-o", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()
