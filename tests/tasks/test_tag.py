"""Fine-tuning, evaluation and prediction of a tag a word."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seqeval.metrics.sequence_labeling import accuracy_score, precision_recall_fscore_support

import ownbert
from ownbert import InputError, Predictor, evaluate, finetune, predict
from ownbert.batches.batch import pack
from ownbert.checkpoint import describe, load, load_tokenizer
from ownbert.cli import app
from ownbert.finetuning.finetune import preview_finetuning
from ownbert.inference.open_folder import open_folder
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.rows import Row
from ownbert.tasks.tag import TaggingTask
from ownbert.tasks.tag_rows import read_sentences
from ownbert.tasks.text_input import TextInputBuilder
from support.plots import matplotlib_installed


def sentence(rng: random.Random) -> list[tuple[str, str]]:
    """The word decides the tag, but what follows a red word is told by that word too."""
    words = []
    for _ in range(rng.randint(2, 5)):
        kind = rng.choice(["red", "blue", "w"])
        if kind == "w":
            words.append((f"w{rng.randint(0, 30)}", "O"))
            continue
        words.append((f"{kind}{rng.randint(0, 5)}", f"B-{kind}"))
        if kind == "red" and rng.random() < 0.7:
            words.append((f"red{rng.randint(6, 11)}", "I-red"))
    return words


def write_conll(path: Path, sentences: list[list[tuple[str, str]]]) -> Path:
    path.write_text("\n\n".join("\n".join("\t".join(pair) for pair in s) for s in sentences) + "\n")
    return path


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagged")
    rng = random.Random(3)
    for name, count in (("train", 120), ("dev", 40)):
        write_conll(folder / f"{name}.conll", [sentence(rng) for _ in range(count)])
    return folder


def tune(tagged: Path, model: Path, output: Path, **options: Any) -> None:
    given: dict[str, Any] = {
        "train": tagged / "train.conll",
        "dev": tagged / "dev.conll",
        "quiet": True,
    }
    given |= {"epochs": 3, "learning_rate": 2e-3, "model": model, "output": output}
    finetune("tag", **(given | options))


@pytest.fixture(scope="module")
def tagger(tagged: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagger") / "tagger"
    with matplotlib_installed():
        tune(tagged, pretrained, folder)
    return folder


@pytest.fixture(scope="module")
def crf_tagger(tagged: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crf") / "tagger"
    tune(tagged, pretrained, folder, crf=True)
    return folder


def shown(tagger: Path, data: Path) -> list[dict]:
    output = data.parent / "answers.jsonl"
    predict(tagger, data, output)
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_it_learns_and_the_figures_are_those_of_seqeval(tagger: Path, tagged: Path):
    scores = evaluate(tagger, tagged / "dev.conll")
    assert scores.f1 > 0.9
    truth = [list(row.target) for row in read_sentences(tagged / "dev.conll", ColumnNames())]
    found = [row["tags"] for row in shown(tagger, tagged / "dev.conll")]
    expected = precision_recall_fscore_support(truth, found, average="micro")
    assert (scores.precision, scores.recall, scores.f1) == pytest.approx(expected[:3])
    assert scores.token_accuracy == pytest.approx(accuracy_score(truth, found))
    assert {"O", "B-red", "I-red", "B-blue"} == set(describe(tagger).labels)


def test_a_crf_learns_and_transformers_sees_its_encoder(crf_tagger: Path, tagged: Path):
    from transformers import AutoModel

    assert evaluate(crf_tagger, tagged / "dev.conll").f1 > 0.9
    model = load(crf_tagger)
    transitions = model.get_parameter("heads.tokens.crf.transitions")
    assert float(transitions.detach().abs().max()) > 0.1  # beyond where it started
    batch = pack(_encoded(crf_tagger, [Row(1, ("red1", "w2", "9"))]))
    theirs: Any = AutoModel.from_pretrained(crf_tagger)
    theirs.eval()
    with torch.inference_mode():
        ours = model(batch).hidden
        hidden = theirs(input_ids=batch.token_ids[None]).last_hidden_state[0]
    assert torch.allclose(ours, hidden, atol=1e-5)


def _encoded(folder: Path, rows: list[Row], *, training: bool = False, **settings):
    said = describe(folder)
    builder = TextInputBuilder(load_tokenizer(folder), said.config, said.config.longest)
    task = TaggingTask(TaskSettings(name="tag", **settings), labels=said.labels)
    return task.encode(rows, builder, training=training).examples


def test_transformers_gives_the_same_logits_and_tags(tagger: Path, tagged: Path):
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    rows = read_sentences(tagged / "dev.conll", ColumnNames())[:10]
    theirs = AutoModelForTokenClassification.from_pretrained(tagger).eval()
    assert type(theirs).__name__ == "BertForTokenClassification"
    tokenizer = AutoTokenizer.from_pretrained(tagger)
    model, predictor = load(tagger), open_folder(tagger)
    for row, decided in zip(rows, predictor(rows), strict=True):
        inputs = tokenizer(list(row.texts), is_split_into_words=True, return_tensors="pt")
        batch = pack(_encoded(tagger, [row]))
        assert batch.token_ids.tolist() == inputs["input_ids"][0].tolist()
        with torch.inference_mode():
            logits = theirs(**inputs).logits[0]
            ours = model(batch, ["tokens"]).logits["tokens"]
        assert torch.allclose(ours, logits, atol=1e-5)
        best = [theirs.config.id2label[i] for i in logits[1:-1].argmax(-1).tolist()]
        assert list(decided.tags) == best


@pytest.mark.parametrize("name", ["tagger", "crf_tagger"])
def test_a_sentence_gets_the_same_tags_in_any_company(
    name: str, tagged: Path, request: pytest.FixtureRequest
):
    predictor = open_folder(request.getfixturevalue(name))
    rows = read_sentences(tagged / "dev.conll", ColumnNames())
    rows += [Row(1, ()), Row(2, tuple(f"w{i % 30}" for i in range(300)))]
    together = predictor(rows)
    for row, one in zip(rows, together, strict=True):
        alone = predictor([row])[0]
        assert alone.tags == one.tags
        assert alone.probabilities == pytest.approx(one.probabilities, abs=1e-5)
        assert len(one.tags) == len(row.texts)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"rdrop": 1.0}, marks=pytest.mark.slow),
        {"rdrop": 1.0, "crf": True},
        {"tag_all": 1},
    ],
)
def test_other_ways_to_learn(tagged: Path, pretrained: Path, tmp_path: Path, options: dict):
    options = {k: bool(v) if k == "tag_all" else v for k, v in options.items()}
    tune(tagged, pretrained, tmp_path / "out", **options)
    assert evaluate(tmp_path / "out", tagged / "dev.conll").f1 > 0.8


@pytest.mark.parametrize("name", ["tagger", "crf_tagger"])
def test_ten_thousand_words_all_get_their_tag(name: str, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(name)
    rng = random.Random(5)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < 10_000:
        pairs += sentence(rng)
    words, truth = zip(*pairs[:10_000], strict=True)
    predictor = open_folder(folder)
    found = predictor([Row(1, words)])[0]
    assert len(found.tags) == 10_000
    assert predictor.cut == 0
    assert list(predictor.warnings()) == []
    assert np.mean([a == b for a, b in zip(found.tags, truth, strict=True)]) > 0.9


def test_long_sentences_are_learnt_window_by_window_each_word_once(tagger: Path):
    words = tuple(f"w{i % 30}" for i in range(300))
    row = Row(1, words, ("O",) * 300)
    learnt = _encoded(tagger, [row], training=True)
    answered = _encoded(tagger, [row])
    assert len(learnt) > 6
    assert len(answered) == 1
    for examples in (learnt, answered):
        batch = pack(examples)
        assert batch.tags is not None
        assert int((batch.tags >= 0).sum()) == 300
        assert batch.layout.max_seqlen <= 48


def test_plain_tags_are_entities_as_in_pipelines(
    tagged: Path, pretrained: Path, tmp_path: Path, capfd
):
    for name in ("train", "dev"):
        text = (tagged / f"{name}.conll").read_text()
        (tmp_path / f"{name}.conll").write_text(text.replace("B-", "").replace("I-", ""))
    tune(tmp_path, pretrained, tmp_path / "out", quiet=False)
    assert "the tags are not entity tags" in capfd.readouterr().out
    scores = evaluate(tmp_path / "out", tmp_path / "dev.conll")
    assert scores.f1 == scores.token_accuracy > 0.9
    from transformers import pipeline

    text = "w1 red2 red7 w3 blue1 red5"
    theirs: Any = pipeline(
        "token-classification", model=str(tmp_path / "out"), aggregation_strategy="simple"
    )
    groups = theirs.group_entities(
        [
            {"entity": tag, "score": 1.0, "word": word, "start": 0, "end": 0}
            for word, tag in zip(
                text.split(), Predictor(tmp_path / "out").predict(text), strict=True
            )
        ]
    )
    found = Predictor(tmp_path / "out")(text)
    pairs = [(each["entity_group"], each["word"]) for each in found]
    assert pairs == [
        (each["entity_group"], each["word"]) for each in groups if each["entity_group"] != "O"
    ]
    assert pairs == [("red", "red2 red7"), ("blue", "blue1"), ("red", "red5")]
    assert all(text[each["start"] : each["end"]] == each["word"] for each in found)
    (tmp_path / "a.txt").write_text(text)
    (row,) = shown(tmp_path / "out", tmp_path / "a.txt")
    assert [(each["type"], each["text"]) for each in row["entities"]] == pairs
    explained = ownbert.explain(tmp_path / "out", [text], method="gradient_x_input")
    assert [each.target for each in explained] == [": ".join(pair) for pair in pairs]


def test_predictions_of_plain_text(tagger: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_text("w1  red2 red7 blue1\n\n")
    full, empty = shown(tagger, tmp_path / "a.txt")
    assert full["words"] == ["w1", "red2", "red7", "blue1"]
    assert full["tags"] == ["O", "B-red", "I-red", "B-blue"]
    assert [(e["type"], e["text"]) for e in full["entities"]] == [
        ("red", "red2 red7"),
        ("blue", "blue1"),
    ]
    assert empty["tags"] == []


def test_tags_and_settings_that_cannot_be_are_refused(
    tagger: Path, pretrained: Path, tagged: Path, tmp_path: Path
):
    odd = write_conll(tmp_path / "odd.conll", [[("w1", "O")], [("w1", "O"), ("red1", "B-mauve")]])
    message = r"odd.conll, line 3, word 2: tag 'B-mauve' is not in the "
    with pytest.raises(InputError, match=message + "training data"):
        tune(tagged, pretrained, tmp_path / "out", dev=odd)
    with pytest.raises(InputError, match=message + "model"):
        evaluate(tagger, odd)
    write_conll(odd, [[("w1", "O")]])
    with pytest.raises(InputError, match="all words have the tag 'O'"):
        tune(tagged, pretrained, tmp_path / "out", train=odd)
    for options in ({"tag_all": True}, {"label_smoothing": 0.1}):
        with pytest.raises(InputError, match=r"cannot be combined with task\.crf"):
            tune(tagged, pretrained, tmp_path / "out", crf=True, **options)
    assert not (tmp_path / "out").exists()


def test_orphans_in_the_training_data_are_told_of(tagged: Path, pretrained: Path, tmp_path: Path):
    task = TaggingTask()
    path = write_conll(
        tmp_path / "a.conll", [[("a", "B-x")], [("b", "O"), ("c", "I-x"), ("d", "I-y")]]
    )
    task.learn(task.read(path), path)
    (warning,) = task.warnings()
    assert warning.startswith("2 training words continue an entity that no word before them")
    assert "word 2 (I-x) of the sentence at" in warning
    rows = task.read(tagged / "train.conll")
    task.learn(rows, tagged / "train.conll")
    assert task.warnings() == []
    text = preview_finetuning("tag", model=pretrained, train=tagged / "train.conll")
    assert task.label_distribution(rows) in text
    assert task.label_distribution(rows).startswith(("red ", "blue "))
    assert "120 training and no dev sentences, 4 labels" in text


def test_the_command(tagged: Path, pretrained: Path, tmp_path: Path):
    from typer.testing import CliRunner

    arguments = ["finetune", "tag", "--model", pretrained, "--train", tagged / "train.conll"]
    arguments += ["--crf", "--epochs", "1", "--stride", "8", "-o", tmp_path / "out"]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    said = describe(tmp_path / "out")
    assert said.specs[0].crf
    assert said.values["ownbert_task"]["settings"] == {"crf": True, "stride": 8}
