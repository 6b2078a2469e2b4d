"""Fine-tuning: previews, word features, resumed runs."""

import json
import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from ownbert import InputError, Predictor, evaluate, finetune
from ownbert.batches.batch import Example
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.finetuning.finetune import preview_finetuning
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.labelled_splits import LabelledSplits
from ownbert.inference.blend import Blend, BlendMember
from ownbert.language import translated
from ownbert.nn.model import Model
from ownbert.serve.served_model import ServedModel
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.text_input import UnknownWords, readable
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.log import read_log
from ownbert.train.loop import Interrupted
from ownbert.train.state import newest_state
from support.cli import run_cli
from support.tiny import SPECIAL, change_config
from support.tokenizer_folders import roberta_folder

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


WAYS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "ema": {"ema": 0.9},
    "adversarial": {"adversarial": 0.5},
    "rdrop": {"rdrop": 1.0},
    "layer_decay": {"layer_decay": 0.8},
    "accumulate": {"accumulate": 2, "batch_size": 8},
    "freeze": {"freeze": 1},
    "ngrams": {"ngrams": 500},
    "all": {
        "ema": 0.9,
        "adversarial": 0.5,
        "rdrop": 1.0,
        "mask_rate": 0.2,
        "layer_decay": 0.8,
        "accumulate": 2,
        "batch_size": 8,
        "labels_per_class": 8,
    },
}


def tune(topics: Path, model: Path, output: Path, **options) -> None:
    known = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True, "epochs": 3}
    finetune(model=model, output=output, log_every=1, **(known | options))


def stop_after(monkeypatch: pytest.MonkeyPatch, evaluations: int) -> None:
    """End the run by a signal, as the system does, after so many evaluations."""
    whole, seen = LabelledSplits.evaluate, [0]

    def evaluate(splits: LabelledSplits, *given, **named):
        seen[0] += 1
        if seen[0] == evaluations:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(splits, *given, **named)

    monkeypatch.setattr(LabelledSplits, "evaluate", evaluate)


def rows(folder: Path) -> list[dict]:
    """The log, without what the clock says."""
    clocks = ("seconds", "tokens_per_second", "mfu")
    return [{k: v for k, v in row.items() if k not in clocks} for row in read_log(folder)]


@pytest.mark.parametrize(
    "way",
    [pytest.param(w, marks=[pytest.mark.slow] if w != "all" else []) for w in WAYS],
)
def test_stopped_or_not_it_is_the_same_model(
    way: str, topics: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = WAYS[way]
    tune(topics, pretrained, tmp_path / "whole", **options)
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        with pytest.raises(Interrupted):
            tune(topics, pretrained, tmp_path / "parts", **options)
    assert newest_state(tmp_path / "parts") is not None
    tune(topics, pretrained, tmp_path / "parts", resume=True, **options)
    name = "model.safetensors"
    assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_a_blend_is_replaced_as_a_whole(tmp_path: Path):
    """Otherwise predict would use it, and not the new model."""
    task = ClassificationTask(labels=("a", "b"))
    Blend((BlendMember("lsa", "linear", ("lsa",), 1.0),), task, (0.0, 0.0)).write(tmp_path)
    (tmp_path / "report.json").write_text('{"leaderboard": [], "task": "classify"}')
    for given in ({}, {"resume": True}):
        with pytest.raises(InputError, match="already contains a model; replace it with overwrite"):
            FinetuneFolder(tmp_path, **given)
    FinetuneFolder(tmp_path, overwrite=True).reserve({})
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_left_alone(
    topics: Path, pretrained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    tune(topics, pretrained, tmp_path / "it", epochs=1)
    weights = tmp_path / "it" / "model.safetensors"
    time, log = weights.stat().st_mtime_ns, rows(tmp_path / "it")
    tune(topics, pretrained, tmp_path / "it", epochs=1, resume=True, quiet=False)
    assert "is finished: nothing is left to do" in capfd.readouterr().out
    assert (weights.stat().st_mtime_ns, rows(tmp_path / "it")) == (time, log)
    with pytest.raises(InputError, match=r"run.seeds was None and is now 2"):
        tune(topics, pretrained, tmp_path / "it", epochs=1, seeds=2, resume=True)
    with pytest.raises(InputError, match="seed was 0 and is now 1"):
        tune(topics, pretrained, tmp_path / "it", epochs=1, seed=1, resume=True)


def test_a_run_can_be_given_more_epochs(
    topics: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patched:
        stop_after(patched, 1)
        with pytest.raises(Interrupted):
            tune(topics, pretrained, tmp_path / "it", epochs=2)
    tune(topics, pretrained, tmp_path / "it", epochs=4, patience=9, resume=True)
    steps = [row["step"] for row in rows(tmp_path / "it")]
    assert max(steps) == 16  # 60 rows in batches of 16
    with monkeypatch.context() as patched:
        stop_after(patched, 1)
        with pytest.raises(Interrupted):
            tune(topics, pretrained, tmp_path / "two", epochs=2)
    with pytest.raises(InputError, match=r"task.rdrop was 0.0 and is now 1.0"):
        tune(topics, pretrained, tmp_path / "two", epochs=2, rdrop=1.0, resume=True)


def dry_run(*options: object) -> str:
    done = run_cli("finetune", *options, "--dry-run")
    assert done.returncode == 0, done.stderr
    return done.stdout


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_command_shows_all_and_writes_nothing(pretrained: Path, topics: Path, tmp_path: Path):
    odd = tmp_path / "train.csv"
    lines = (topics / "train.csv").read_text().splitlines()
    dev = (topics / "dev.csv").read_text().splitlines()
    swapped = "blue," + lines[1].partition(",")[2]
    odd.write_text("\n".join([*lines, swapped, "red,", "red," + "red1 " * 80, dev[3]]) + "\n")
    given = ("--model", pretrained, "--train", odd, "--dev", topics / "dev.csv")
    text = dry_run("classify", *given, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    recipe, _, rest = text.partition("\n\n")
    assert yaml.safe_load(recipe)["data"]["train"] == str(odd)
    assert rest.startswith("64 training and 30 dev documents, 3 labels")
    assert "columns: 'text' as input, 'label' as target" in rest
    assert line_of(rest, "labels, dev:") == "labels, dev: blue 33.3%, green 33.3%, red 33.3%"
    assert "longest 48; 1 documents are cut at 48" in line_of(rest, "tokens per sequence")
    assert f"{odd}, line 2 (red) and {odd}, line 62 (blue)" in rest
    assert f"1 training documents have an empty text: {odd}, line 63" in rest
    assert f"{topics / 'dev.csv'}, line 4 and {odd}, line 65" in rest
    shown = rest.partition("examples, as the model sees them:\n")[2].splitlines()
    assert len(shown) == 5
    assert all(": [CLS] " in line and line.endswith("[SEP]") for line in shown)


def test_lengths_are_those_of_the_texts(pretrained: Path, topics: Path):
    text = preview_finetuning(model=pretrained, train=topics / "train.csv")
    texts = [line.split(",")[1] for line in (topics / "train.csv").read_text().splitlines()[1:]]
    sizes = np.asarray([len(t.split()) + 2 for t in texts])
    sizes = np.minimum(sizes, 48)
    half, most, nearly = (round(float(np.percentile(sizes, p))) for p in (50, 90, 99))
    assert line_of(text, "tokens per sequence") == (
        f"tokens per sequence: median {half}, 90% up to {most}, 99% up to {nearly}, longest "
        f"{sizes.max()}; none is cut at 48"
    )


def test_of_many_labels_those_that_stand_out(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rng, path = random.Random(0), tmp_path / "many.csv"
    labels = [f"topic{i:02}" for i in range(30) for _ in range(i + 1)]
    rows = [f"{label},red{rng.randint(0, 11)} w{i % 31} 9" for i, label in enumerate(labels)]
    path.write_text("label,text\n" + "\n".join(rows) + "\n")
    line = line_of(preview_finetuning(model=pretrained, train=path), "labels, training:")
    assert line.startswith("labels, training: 30 in all; the most frequent: topic29 30 (6.5%), ")
    frequent, _, rarest = line.partition("; the rarest: ")
    assert frequent.count("topic") == 10
    assert rarest.split(", ")[-1] == "topic00 1 (0.2%)"
    assert rarest.count("topic") == 5
    monkeypatch.setenv("OWNBERT_LANGUAGE", "zh")
    line = line_of(translated(preview_finetuning(model=pretrained, train=path)), "标签（训练）：")
    assert line.startswith("标签（训练）：共 30 种；最常见的：topic29 30 (6.5%), ")


def test_texts_that_the_vocabulary_does_not_know_are_a_warning(pretrained: Path, tmp_path: Path):
    path = tmp_path / "train.csv"
    path.write_text("label,text\n" + "a,red1 unheard of 9\nb,green2 9\n" * 5)
    text = preview_finetuning(model=pretrained, train=path)
    # Two of the six words of each pair of rows; [CLS] and [SEP] do not count.
    assert "warning: 33.3% of the tokens are [UNK]" in text
    path.write_text("label,text\n" + "a,red1 9\nb,green2 9\n" * 5)
    assert "unknown tokens: 0.00%" in preview_finetuning(model=pretrained, train=path)


def test_pairs_are_shown_one_below_the_other(pretrained: Path, tmp_path: Path):
    path = tmp_path / "pairs.tsv"
    rows = ["red1 9\tblue2 9\tsame", "red2 9\tw1 9\tother"] * 4
    path.write_text("premise\thypothesis\tlabel\n" + "\n".join(rows) + "\n")
    text = preview_finetuning(model=pretrained, train=path)
    assert "'premise' and 'hypothesis' as input" in text
    assert "same:\n    [CLS] red1 9 [SEP]\n    blue2 9 [SEP]\n" in text


def test_choices_are_a_line_each(pretrained: Path, tmp_path: Path):
    path = tmp_path / "choices.tsv"
    rows = [f"red{i}\tblue1\tgreen2\t{i % 2}" for i in range(8)]
    path.write_text("prompt\tchoice0\tchoice1\tlabel\n" + "\n".join(rows) + "\n")
    text = dry_run("choose", "--model", pretrained, "--train", path, "-o", tmp_path / "out")
    assert "    [CLS] red0 [SEP] blue1 [SEP]\n    [CLS] red0 [SEP] green2 [SEP]\n" in text
    assert "tokens per sequence (up to 2 of them together): median 5" in text


def test_long_texts_lose_their_middle(pretrained: Path):
    tokenizer = Tokenizer.load(pretrained)
    words = tokenizer.encode_batch([" ".join(["red1"] * 200)])[0]
    ids = np.asarray([tokenizer.cls_id, *words, tokenizer.sep_id])
    (shown,) = readable(Example(ids, np.zeros_like(ids)), tokenizer)
    assert len(shown) == 200
    assert shown.startswith("[CLS] red1 ")
    assert "..." in shown
    assert shown.endswith(" red1 [SEP]")


def test_two_texts_with_two_separators_between_them(tmp_path: Path):
    tokenizer = Tokenizer.load(roberta_folder(tmp_path))
    one, two = tokenizer.encode_batch(["a", "b"])
    sep = tokenizer.sep_id
    ids = np.asarray([tokenizer.cls_id, *one, sep, sep, *two, sep])
    first, second = readable(Example(ids, np.zeros_like(ids)), tokenizer)
    assert first.startswith("<s> ")
    assert first.endswith(" </s>")
    assert second.startswith("</s> ")
    assert second.endswith(" </s>")


def test_the_share_of_unknown_tokens_of_no_text_at_all(pretrained: Path):
    tokenizer = Tokenizer.load(pretrained)
    ids = np.asarray([tokenizer.cls_id, tokenizer.sep_id])
    unknown = UnknownWords(tokenizer)
    unknown.count([ids])
    assert unknown.share == 0
    unknown.count([np.asarray([tokenizer.unk_id] * 9)])
    assert unknown.warning() == (
        "warning: 100.0% of the tokens are [UNK]: the model's vocabulary contains no word of these "
        "texts; use another model, or make one: ownbert vocab TEXTS -o MODEL, then ownbert "
        "prepare and ownbert pretrain"
    )


def test_labels_that_look_missing_get_a_warning(pretrained: Path, tmp_path: Path):
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "red1 9,NA\nred2 9,a\nred3 9,a\nred4 9,a\n" * 2)
    text = preview_finetuning("classify", model=pretrained, train=path)
    assert "\nwarning: the label 'NA' (rows: 2) looks like a missing value; if it" in text


@pytest.mark.parametrize("column", ["mood", "joy,anger"])
def test_columns_of_numbers_are_named(pretrained: Path, tmp_path: Path, column: str):
    path = tmp_path / "numbers.csv"
    rows = [f"{i},{i + 1},{i % 3},red{i} 9" for i in range(8)]
    path.write_text("mood,joy,anger,text\n" + "\n".join(rows) + "\n")
    text = preview_finetuning("regress", model=pretrained, train=path, label_column=column)
    named = ", ".join(repr(name) for name in column.split(","))
    assert f"columns: 'text' as input, {named} as target" in text


def test_training_warns_of_the_same_rows(pretrained: Path, topics: Path, tmp_path: Path, capfd):
    from ownbert import finetune

    rows = topics / "train.csv"
    finetune(model=pretrained, train=rows, dev=rows, output=tmp_path / "out", max_steps=1)
    said = capfd.readouterr().out
    assert "warning: 60 of 60 dev documents are training documents too" in said


def test_training_names_the_columns_that_are_not_used(pretrained: Path, tmp_path: Path, capfd):
    from ownbert import finetune

    rows = [{"Verlauf": f"red{i} 9", "text_pair": "x", "label": "ab"[i % 2]} for i in range(8)]
    how: Any = {"model": pretrained, "output": tmp_path / "out", "max_steps": 1}
    finetune(train=rows, text_column="Verlauf", **how)
    said = capfd.readouterr().out
    assert "columns: 'Verlauf' as input, 'label' as target (not used: text_pair)" in said
