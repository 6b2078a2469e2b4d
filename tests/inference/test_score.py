"""Surprisal of texts, and how unusual they are beside normal ones, in a toy language."""

import csv
import gzip
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import ownbert
from ownbert import InputError, Scorer, merge, score
from ownbert.checkpoint import load
from ownbert.inference.score import NORMAL, PARTS
from ownbert.views.ngram_counts import NormalCounts
from support.cli import refusal, run_cli
from support.shared import made_once
from support.tiny import made


def session(rng: random.Random) -> str:
    """A file is opened, read or written a few times, and closed."""
    middle = [f"{rng.choice(['read', 'write'])} done" for _ in range(rng.randint(1, 4))]
    return " ".join(["open", "check", *middle, "close"])


def sessions(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [session(rng) for _ in range(count)]


def test_a_relative_folder_is_no_name_of_the_hub(bert: Path, tmp_path: Path, monkeypatch):
    shutil.copytree(bert, tmp_path / "runs" / "log")
    monkeypatch.chdir(tmp_path)
    assert ownbert.score("runs/log", sessions(2, 3), normal=sessions(120, 2))[0].score is not None


def test_texts_of_unknown_words_are_named(bert: Path, tmp_path: Path):
    folder, said = shutil.copytree(bert, tmp_path / "bert"), []
    for given in ({"texts": ["9081 77"]}, {"normal": ["9081 77", "77 4 61"] * 60}):
        score(folder, **given, say=said.append)
        assert "contains no word of these texts" in said.pop(), given
    score(folder, sessions(3, 3), say=said.append)
    assert not said


# In order: two tokens swapped, a token missing, one that is unseen, one too often.
ODD = [
    "check open read done close",
    "open check read read done close",
    "open check read done crash close",
    "open check read done close close close",
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pretrained on the toy language; do not write into it."""

    def make(folder: Path) -> None:
        corpus = folder / "corpus.txt"
        corpus.write_text("\n".join(sessions(300, 1)) + "\n")
        ownbert.learn_vocabulary(corpus, folder / "bert", kind="blank", min_count=1)
        ownbert.prepare(corpus, folder / "tokens", tokenizer=folder / "bert")
        options = {"max_steps": 80, "max_length": 16, "batch_tokens": 512, "quiet": True}
        ownbert.pretrain(folder / "tokens", folder / "bert", objectives="mlm", **options)

    return made_once(tmp_path_factory, "toy-language", make) / "bert"


@pytest.fixture(scope="module")
def fitted(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that knows normal texts; do not write into it."""
    folder = tmp_path_factory.mktemp("fitted") / "bert"
    shutil.copytree(bert, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert score(folder, normal=sessions(1000, 2)) == 0
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after.keys() - before.keys() == {NORMAL}
    assert {name: after[name] for name in before} == before
    return folder


def test_odd_texts_are_more_surprising(bert: Path):
    normal = [one.surprisal for one in score(bert, sessions(50, 3))]
    for one in score(bert, ODD):
        assert one.surprisal > np.quantile(normal, 0.95)
        assert one.score == one.surprisal
        assert one.perplexity == pytest.approx(np.exp(one.surprisal))
        assert (one.flag, one.reasons) == (None, ())
        assert [one.text[start:end] for start, end in one.spans] == list(one.tokens)
    (swapped,) = score(bert, ODD[:1])
    assert max(swapped.surprisals[:2]) > max(swapped.surprisals[3:])


def test_exact_is_one_masked_token_at_a_time(bert: Path):
    text = "open check write done read done close"
    (exact,) = score(bert, [text], exact=True)
    (singles,) = score(bert, [text], passes=7)
    assert exact.surprisals == pytest.approx(singles.surprisals, rel=1e-4, abs=1e-6)
    # As the network itself says.
    model, tokenizer = load(bert, heads=["mlm"]), ownbert.load_tokenizer(bert)
    ids = tokenizer.input_format.one(tokenizer.encode(text))
    from ownbert.batches.batch import pack
    from ownbert.batches.example import Example

    for position in range(1, len(ids) - 1):
        masked = np.array(ids)
        masked[position] = tokenizer.mask_id
        at = np.array([position])
        example = Example(masked, 0 * masked, masked_positions=at, masked_ids=np.array(ids)[at])
        with torch.inference_mode():
            logits = model(pack([example]), ["mlm"]).logits["mlm"]
        expected = -logits.log_softmax(-1)[0, ids[position]]
        assert exact.surprisals[position - 1] == pytest.approx(float(expected), rel=1e-4, abs=1e-5)
    (grouped,) = score(bert, [text], passes=2)
    assert grouped.surprisals != pytest.approx(exact.surprisals, rel=1e-3)


def test_a_single_text_has_a_single_score(bert: Path):
    scorer = Scorer(bert)
    assert scorer("open check close") == scorer(["open check close"])[0]


def test_long_and_empty_texts(bert: Path):
    long = " ".join(["open check", *["read done"] * 400, "close"])
    empty, whole = score(bert, ["", long])
    assert (empty.score, empty.perplexity, empty.tokens) == (None, None, ())
    assert len(whole.surprisals) == 803
    assert all(value > 0 for value in whole.surprisals)


def test_reasons_name_what_is_unusual(fitted: Path):
    found = score(fitted, ODD)
    assert all(one.flag for one in found)
    reasons = [" | ".join(one.reasons) for one in found]
    assert "<start> check" in reasons[0]
    assert "read read" in reasons[1]
    assert "unseen: crash" in reasons[2]
    assert "close x3 for x1" in reasons[3]


def test_so_many_false_alarms_as_were_chosen(bert: Path):
    held_out = sessions(4000, 5)
    scorer = Scorer(bert).fit(sessions(2000, 4), false_alarms=0.05)
    assert scorer.profile is not None
    flagged = np.mean([bool(one.flag) for one in scorer(held_out)])
    assert 0.01 < flagged < 0.07  # the share is reached only where scores do not tie
    own = scorer.profile.weighed(scorer.profile.normal).sum(1)
    assert np.mean(own > scorer.profile.threshold) <= 0.05
    assert not (bert / NORMAL).exists()


def test_another_rate_of_false_alarms_needs_no_new_fit(fitted: Path):
    texts = sessions(200, 6)
    few, many = (Scorer(fitted, false_alarms=rate) for rate in (0.01, 0.3))
    assert few.profile is not None
    assert many.profile is not None
    assert few.profile.threshold > many.profile.threshold
    assert [one.score for one in few(texts)] == [one.score for one in many(texts)]
    assert sum(bool(one.flag) for one in many(texts)) > sum(bool(one.flag) for one in few(texts))
    with pytest.raises(InputError, match=r"1,000 normal rows are too few.* 10,000 or more"):
        Scorer(fitted, false_alarms=0.0001)


def test_parts_weigh_what_their_rarity_says(fitted: Path):
    profile = Scorer(fitted).profile
    assert profile is not None
    middle = profile.weighed(np.median(profile.normal, axis=0)[None])[0]
    assert (middle <= np.log(2) + 0.01).all()
    beyond = profile.weighed((profile.normal.max(0) + np.array([5, 0.5, 2, 0.5, 1]))[None])[0]
    assert (beyond >= np.log(1001) - 1e-6).all()
    assert len(middle) == len(PARTS)


def test_what_is_usual_is_not_flagged(bert: Path):
    """Few distinct rows, each of them often: nothing that was seen is rare."""
    normal = ["open check close"] * 50 + ["open check read done close"] * 40
    scorer = Scorer(bert).fit(normal, false_alarms=0.05)
    # In batches of other sizes, where the last digits differ.
    for texts in (normal[:1], normal[-1:], [*normal, *ODD]):
        assert not any(one.flag or one.reasons for one in scorer(texts)[: len(normal)])
    assert all(one.flag for one in scorer(ODD))


def test_the_nearest_normal_counts_are_those_of_all_distances():
    rng = np.random.default_rng(0)
    letters = list("abcdefg")
    texts = [rng.choice(letters, rng.integers(1, 12)).tolist() for _ in range(60)]
    new = [rng.choice([*letters, "new"], rng.integers(1, 12)).tolist() for _ in range(20)]
    counts = NormalCounts.fit(texts)
    found, _ = counts.measured(new)
    share = {a: np.mean([a in text for text in texts]) for a in letters}
    weight = {a: 1 - np.log(share[a]) for a in letters} | {"new": 1 + np.log(len(letters) + 2)}

    def distance(one: list[str], two: list[str]) -> float:
        apart = sum(weight[a] * abs(one.count(a) - two.count(a)) for a in weight)
        total = sum(weight[a] * (one.count(a) + two.count(a)) for a in weight)
        return apart / (total + 4)  # each text has two edges, of weight 1

    for text, value, unseen in zip(new, found["counts"], found["unseen"], strict=True):
        assert value == pytest.approx(min(distance(text, one) for one in texts))
        assert unseen == text.count("new")
    again = NormalCounts.from_arrays(counts.arrays())
    assert again.measured(new)[0]["counts"].tolist() == found["counts"].tolist()


def test_a_profile_belongs_to_its_weights_and_passes(fitted: Path, bert: Path, tmp_path: Path):
    folder = tmp_path / "bert"
    shutil.copytree(fitted, folder)
    with pytest.raises(InputError, match=r"was fitted with other passes"):
        score(folder, ODD, exact=True)
    state = ownbert.load(folder)
    with torch.no_grad():
        next(state.parameters()).add_(1)
    state.save_pretrained(folder)
    with pytest.raises(InputError, match="fitted with other weights"):
        score(folder, ODD)
    (folder / NORMAL).write_bytes(b"PK\3\4 nothing")
    with pytest.raises(InputError, match=r"cannot be read .*fit it again"):
        score(folder, ODD)


def test_files_are_streamed_resumed_and_joined(fitted: Path, tmp_path: Path):
    texts = [*sessions(30, 8), "", *ODD]
    table = tmp_path / "new.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("line", "text"), *((f"L{i}", t) for i, t in enumerate(texts))])
    whole = tmp_path / "whole.jsonl"
    assert score(fitted, table, whole, id_column="line", tokens=True) == 35
    rows = [json.loads(line) for line in whole.read_text().splitlines()]
    assert [row["line"] for row in rows] == [f"L{i}" for i in range(35)]
    assert [row["text"] for row in rows] == texts
    assert [row["flag"] for row in rows[-4:]] == [True] * 4
    assert [token for token, _ in rows[-2]["tokens"]] == ODD[2].split()
    for number in (1, 2):
        score(
            fitted, table, tmp_path / "out.jsonl", id_column="line", tokens=True, shard=(number, 2)
        )
    merge(tmp_path / "out.jsonl")
    joined = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in joined] == texts
    assert [row["score"] for row in joined] == pytest.approx([r["score"] for r in rows], rel=1e-3)
    score(fitted, table, tmp_path / "out.csv.gz")
    with gzip.open(tmp_path / "out.csv.gz", "rt", newline="") as file:
        assert json.loads(list(csv.DictReader(file))[-2]["reasons"])


def test_a_stopped_run_is_resumed(fitted: Path, tmp_path: Path):
    path, out = tmp_path / "new.txt", tmp_path / "out.jsonl"
    path.write_text("\n".join(sessions(5000, 9)) + "\n")

    def stop(count: int) -> None:
        if count > 2000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="--resume"):
        score(fitted, path, out, progress=stop)
    assert not out.exists()
    with pytest.raises(InputError, match="cannot resume"):
        score(fitted, path, out, tokens=True, resume=True)
    scored: list[str] = []
    assert score(fitted, path, out, resume=True, each=lambda one: scored.append(one.text)) == 5000
    assert len(scored) == 5000 - 2048
    score(fitted, path, tmp_path / "once.jsonl")
    assert out.read_bytes() == (tmp_path / "once.jsonl").read_bytes()


def test_the_command(bert: Path, tmp_path: Path):
    folder, page = tmp_path / "bert", tmp_path / "page.html"
    shutil.copytree(bert, folder)
    (tmp_path / "normal.txt").write_text("\n".join(sessions(200, 2)) + "\n")
    (tmp_path / "new.txt").write_text("\n".join([*sessions(5, 3), *ODD]) + "\n")
    plain = run_cli("score", folder, ODD[2], "--tokens")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert {"score", "surprisal", "perplexity", "tokens"} < json.loads(plain.stdout).keys()
    done = run_cli("score", folder, "--normal", tmp_path / "normal.txt", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with pytest.raises(InputError, match="give texts, or only normal"):
        score(folder, None, tmp_path / "o.jsonl", normal=sessions(200, 2))
    done = run_cli(
        "score", folder, tmp_path / "new.txt", "-o", tmp_path / "o.jsonl", "--html", page
    )
    assert (done.returncode, done.stderr) == (0, "")
    flags = [json.loads(line)["flag"] for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert f"9 texts scored, {sum(flags)} flagged; saved" in done.stdout
    assert "unseen: crash" in page.read_text()
    shown = re.findall(r'"target": ?"(row \d): (flagged|not flagged)', page.read_text())
    assert shown[0] in [(f"row {n}", "flagged") for n in range(6, 10)]  # the odd ones are last
    assert {name: flag == "flagged" for name, flag in shown} == {
        f"row {row}": flag for row, flag in enumerate(flags, start=1)
    }
    with (tmp_path / "new.csv").open("w") as file:
        file.write("who,text\n" + "".join(f"id{i},{text}\n" for i, text in enumerate(ODD)))
    done = run_cli("score", folder, tmp_path / "new.csv", "--id-column", "who", "--html", page)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"4 texts scored, 4 flagged; saved {page}\n"
    assert sorted(re.findall(r'"target": ?"(id\d): flagged', page.read_text())) == [
        f"id{i}" for i in range(4)
    ]
    normal = ("--normal", tmp_path / "normal.txt", "-o", tmp_path / "piped.jsonl")
    assert run_cli("score", folder, *normal, stdin="\n".join(ODD)).returncode == 0
    assert len((tmp_path / "piped.jsonl").read_text().splitlines()) == 4
    piped = run_cli("score", folder, stdin="\n".join(ODD))
    assert [json.loads(line)["flag"] for line in piped.stdout.splitlines()] == [True] * 4


def test_mistakes_get_one_line(bert: Path, tmp_path: Path):
    folder, classifier = tmp_path / "bert", tmp_path / "classifier"
    shutil.copytree(bert, folder)
    made(classifier, "classification")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "few.txt").write_text("open check close\n" * 30)
    (tmp_path / "many.txt").write_text("open check close\n" * 100)
    (tmp_path / "a.csv").write_text("one,two\n1,2\n")
    before = sorted(path.name for path in folder.iterdir())
    for arguments, message in [
        ((classifier, "a"), "has no masked-language-model head"),
        ((tmp_path / "none", "a"), "no such folder"),
        ((folder, tmp_path / "empty.txt"), "empty.txt"),
        ((folder, tmp_path / "a.csv", "--text-column", "three"), "has no column 'three'"),
        ((folder, "a", "--normal", tmp_path / "empty.txt"), "empty.txt"),
        ((folder, "a", "--normal", tmp_path / "few.txt"), "30 normal rows are too few"),
        ((folder, "a", "--normal", tmp_path / "few.txt", "--false-alarms", 0), "false_alarms is"),
        ((folder, "a", "--false-alarms", 0.1), "has no profile of normal texts"),
        ((folder, "a", "--passes", 3, "--exact"), "omit passes"),
        ((folder, "a", "--resume"), "name it with -o FILE"),
        (
            (folder, "a", "--html", tmp_path / "p.html", "-o", tmp_path / "o.jsonl", "--resume"),
            "all rows",
        ),
        ((folder, "a", "-o", tmp_path / "o.txt"), "cannot tell the file type"),
        (
            (folder, "a", "-o", tmp_path / "o.txt", "--normal", tmp_path / "many.txt"),
            "cannot tell the file type",
        ),
        ((folder, tmp_path / "few.txt", "-o", tmp_path / "few.txt"), "few.txt"),
        ((folder, tmp_path / "few.txt", "--html", tmp_path / "few.txt"), "few.txt"),
        ((folder,), "the input is empty"),
    ]:
        assert message in refusal("score", *arguments), arguments
    assert sorted(path.name for path in folder.iterdir()) == before
    assert not list(tmp_path.glob("o.*"))
