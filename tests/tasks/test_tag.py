"""A tag a word: learning, entities, files of words, and words as pieces in windows."""

import ast
import csv
import gzip
import json
import random
import warnings
from collections import Counter
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from seqeval.metrics.sequence_labeling import (
    accuracy_score,
    get_entities,
    precision_recall_fscore_support,
)
from sklearn.metrics import f1_score
from torchcrf import CRF

import ownbert
from ownbert import InputError, Predictor, evaluate, predict
from ownbert.batches.batch import pack
from ownbert.checkpoint import describe, load, load_tokenizer
from ownbert.cli import app
from ownbert.config.encoder import EncoderConfig
from ownbert.finetuning.finetune import preview_finetuning
from ownbert.inference.open_folder import open_folder
from ownbert.tables.columns import COLUMNS, ColumnNames, positional_names
from ownbert.tables.memory import table_of
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.row_objectives import (
    CrfObjective,
    TaggingObjective,
    log_marginals,
    pad_sentences,
)
from ownbert.tasks.rows import Row
from ownbert.tasks.tag import (
    TaggedSentence,
    TaggingTask,
    are_entity_tags,
    entities,
    orphans,
    score_entities,
    score_tags,
)
from ownbert.tasks.tag_rows import (
    WordWindow,
    encode_words,
    read_sentences,
    split_into_windows,
    split_text,
    stream_sentences,
    text_of,
)
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.text.tokenizer import Tokenizer
from support.plots import matplotlib_installed
from support.task_runs import assert_same_in_any_company, read_jsonl, tuned


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


tune = partial(tuned, "tag", epochs=3, learning_rate=2e-3)


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
    predict(tagger, data, data.parent / "answers.jsonl")
    return read_jsonl(data.parent / "answers.jsonl")


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
    folder, rows = (
        request.getfixturevalue(name),
        read_sentences(tagged / "dev.conll", ColumnNames()),
    )
    rows += [Row(1, ()), Row(2, tuple(f"w{i % 30}" for i in range(300)))]
    assert_same_in_any_company(folder, rows)
    assert [len(found.tags) for found in open_folder(folder)(rows)] == [len(r.texts) for r in rows]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"rdrop": 1.0}, marks=pytest.mark.slow),
        {"rdrop": 1.0, "crf": True},
        {"tag_all": True},
    ],
)
def test_other_ways_to_learn(tagged: Path, pretrained: Path, tmp_path: Path, options: dict):
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
    folder, predictor = str(tmp_path / "out"), Predictor(tmp_path / "out")
    theirs: Any = pipeline("token-classification", model=folder, aggregation_strategy="simple")
    tags = zip(text.split(), predictor.predict(text), strict=True)
    words = [{"entity": t, "score": 1.0, "word": w, "start": 0, "end": 0} for w, t in tags]
    groups = theirs.group_entities(words)
    found = predictor(text)
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
    spans = [(entity["type"], entity["text"]) for entity in full["entities"]]
    assert spans == [("red", "red2 red7"), ("blue", "blue1")]
    assert empty["tags"] == []


def test_tags_and_settings_that_cannot_be_are_refused(
    tagger: Path, pretrained: Path, tagged: Path, tmp_path: Path
):
    odd = write_conll(tmp_path / "odd.conll", [[("w1", "O")], [("w1", "O"), ("red1", "B-mauve")]])
    plain = write_conll(tmp_path / "plain.conll", [[("w1", "O")]])
    message = r"odd.conll, line 3, word 2: tag 'B-mauve' is not in the "
    with pytest.raises(InputError, match=message + "model"):
        evaluate(tagger, odd)
    for options, said in (
        ({"dev": odd}, message + "training data"),
        ({"train": plain}, "all words have the tag 'O'"),
        ({"crf": True, "tag_all": True}, r"cannot be combined with task\.crf"),
        ({"crf": True, "label_smoothing": 0.1}, r"cannot be combined with task\.crf"),
    ):
        with pytest.raises(InputError, match=said):
            tune(tagged, pretrained, tmp_path / "out", **options)
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


# Entities in tags: against seqeval; their places in texts; published files.


def test_entities_and_scores_are_those_of_seqeval():
    rng = random.Random(0)
    for letters in ("BI", "BIES"):
        tags = ["O", *(f"{a}-{b}" for a in letters for b in ("x", "long-name"))]
        truth, found = (
            [[rng.choice(tags) for _ in range(rng.randint(1, 12))] for _ in range(60)]
            for _ in range(2)
        )
        found = [(f * 12)[: len(t)] for t, f in zip(truth, found, strict=True)]
        for sequence in truth:
            expected = [(kind, a, b + 1) for kind, a, b in get_entities(sequence)]
            assert entities(sequence) == expected
        scores = score_entities(truth, found)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            micro = precision_recall_fscore_support(truth, found, average="micro")
            each = precision_recall_fscore_support(truth, found, average=None)
        assert (scores.precision, scores.recall, scores.f1) == pytest.approx(micro[:3])
        ours = [(s.precision, s.recall, s.f1, s.support) for s in scores.labels]
        assert np.asarray(ours) == pytest.approx(np.asarray(each).T)


def test_other_letters_mean_the_same():
    iobes = ["B-x", "I-x", "E-x", "S-y", "O"]
    assert entities(iobes) == [("x", 0, 3), ("y", 3, 4)]
    assert entities(["B-x", "I-x", "L-x", "U-y", "O"]) == entities(iobes)
    assert entities(["B-x", "M-x", "E-x", "S-y", "O"]) == entities(iobes)
    assert entities(["B", "I", "O"]) == [("_", 0, 2)]
    assert orphans(["I-x", "I-x", "I-y", "O", "E-y", "B-x", "E-x"]) == [0, 2, 4]
    assert are_entity_tags(["O", "B-x", "I-x"])
    assert not are_entity_tags(["NN", "O", "B-x"])
    assert not are_entity_tags(["O"])


def test_adjacent_words_with_the_same_plain_tag_are_one_entity():
    tags = ["PER", "PER", "O", "LOC", "PER", "B-x", "I-x", "B-x", "S-x"]
    assert entities(tags, plain=True) == [
        *(("PER", 0, 2), ("LOC", 3, 4), ("PER", 4, 5)),
        *(("x", 5, 7), ("x", 7, 8), ("S-x", 8, 9)),
    ]


def test_single_tags_have_their_own_f1():

    truth, found = [["NN", "VB", "NN"], ["DT"]], [["NN", "NN", "VB"], ["DT"]]
    scores = score_tags(truth, found, ["DT", "NN", "VB"])
    assert scores.f1 == scores.token_accuracy == 0.5
    flat = [[tag for tags in each for tag in tags] for each in (truth, found)]
    expected = f1_score(*flat, average=None, labels=["DT", "NN", "VB"])  # pyright: ignore[reportArgumentType]
    assert [s.f1 for s in scores.labels] == pytest.approx(expected)
    assert "not entity tags" in scores.warnings[0]


def test_offsets_are_into_the_text_or_the_words_joined():
    task = TaggingTask(labels=("B-x", "I-x", "O"))
    tagged = TaggedSentence(("B-x", "O", "B-x", "I-x"), np.asarray([0.5, 0.6, 0.8, 1.0]))
    spaced = "  Ann   saw\tNew  York"
    for row, text in (
        (split_text(1, spaced), spaced),
        (Row(1, ("Ann", "saw", "New", "York")), "Ann saw New York"),
        (Row(1, ("我", "在", "北", "京")), "我在北京"),
        (Row(1, ("a", "b", "c", "d")), "a b c d"),
        (Row(1, ("我们", "在", "北", "京")), "我们 在 北 京"),
    ):
        found = task.output_row(tagged, row)
        assert found["text"] == text
        assert (found["words"], found["tags"]) == (list(row.texts), list(tagged.tags))
        assert [e["text"] for e in found["entities"]] == [
            text[e["start"] : e["end"]] for e in found["entities"]
        ]
        first, second = found["entities"]
        assert first["text"] == row.texts[0]
        assert second["text"].startswith(row.texts[2])
        assert second["text"].endswith(row.texts[3])
        assert (first["score"], second["score"]) == (0.5, 0.9)
    empty = task.output_row(TaggedSentence((), np.zeros(0)), split_text(1, ""))
    assert empty == {"text": "", "words": [], "tags": [], "entities": []}


@pytest.mark.parametrize("name", ["wnut17", "weibo-ner"])
def test_published_entities_are_counted_as_published(shared_data: Path, name: str):
    said = (shared_data / name / "SOURCE.md").read_text(encoding="utf-8")
    counts = said[said.index("{'train'") :]
    published = ast.literal_eval(counts[: counts.index("})}") + 3])
    for part, (number, by_type) in published.items():
        path = shared_data / name / f"{part}.conll"
        rows = read_sentences(path, ColumnNames())
        found = Counter(kind for row in rows for kind, _, _ in entities(row.target))
        # What no word began is an entity to us, and was not counted there.
        found.subtract(row.target[place][2:] for row in rows for place in orphans(row.target))
        assert (len(rows), dict(found)) == (number, by_type)
        for row in rows:
            text, starts = text_of(row)
            ends = [s + len(w) for s, w in zip(starts, row.texts, strict=True)]
            cut = [text[a:b] for a, b in zip(starts, ends, strict=True)]
            assert tuple(cut) == row.texts


# Files of tagged words, and of words and texts to tag.


WORDS, TAGS = ["Ann", "saw", "New", "York"], ["B-per", "O", "B-loc", "I-loc"]


def test_all_formats_are_the_same(tmp_path: Path):
    def saved(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    columns = "".join(f"{w}\t{t}\n" for w, t in zip(WORDS, TAGS, strict=True))
    joined = {"tokens": " ".join(WORDS), "ner_tags": " ".join(TAGS)}
    files = [
        *(saved(f"a{ending}", columns) for ending in (".conll", ".txt", ".bio", ".tsv", "")),
        saved("a.jsonl", json.dumps({"id": 3, "words": WORDS, "labels": TAGS})),
        saved("b.json", json.dumps({"tags": TAGS, "tokens": WORDS, "text": "Ann saw"})),
        saved("table.tsv", "tokens\ttags\n" + " ".join(WORDS) + "\t" + " ".join(TAGS) + "\n"),
        *(tmp_path / name for name in ("b.csv", "c.parquet", "d.conll.gz", "e.jsonl.gz")),
    ]
    with (tmp_path / "b.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, joined)
        writer.writeheader()
        writer.writerow(joined)
    pq.write_table(pa.table({"tokens": [WORDS], "tags": [TAGS]}), tmp_path / "c.parquet")
    (tmp_path / "d.conll.gz").write_bytes(gzip.compress(columns.encode()))
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    for path in files:
        (row,) = read_sentences(path, ColumnNames())
        assert (row.texts, row.target) == (tuple(WORDS), tuple(TAGS)), path.name
        if path.name != "a.txt" and path.suffix:
            (row,) = stream_sentences(path, ColumnNames())
            assert (row.texts, row.target) == (tuple(WORDS), None), path.name
    # A first word that is called as a column does not make a table.
    (row,) = read_sentences(saved("g.tsv", "words\tO\n" + columns), ColumnNames())
    assert row.texts == ("words", *WORDS)
    named = saved("f.jsonl", json.dumps({"mine": WORDS, "theirs": TAGS, "x": 1}))
    (row,) = read_sentences(named, ColumnNames(text="mine", label="theirs"))
    assert row.target == tuple(TAGS)
    # Numbers of columns that were given for a CoNLL file mean nothing to a table.
    (same,) = read_sentences(tmp_path / "a.jsonl", ColumnNames(text="1", label="4"))
    assert same.target == row.target


def test_plain_text_and_chinese_to_predict(tmp_path: Path):
    def words(name: str, text: str) -> list[tuple[str, ...]]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return [row.texts for row in stream_sentences(tmp_path / name, ColumnNames())]

    chinese = ("我", "买", "iPhone", "了", "。", "好")
    found = words("a.txt", "Ann saw  York\n\n我买iPhone了。 好\n")
    assert found == [("Ann", "saw", "York"), (), chinese]
    assert words("a.csv", "text\nAnn saw\n我们\n") == [("Ann", "saw"), ("我", "们")]
    assert words("b.csv", "words\n我们 好\n") == [("我们", "好")]
    assert words("a.conll", "Ann\nsaw\n\nBob\n") == [("Ann", "saw"), ("Bob",)]
    named = positional_names(COLUMNS["tag"], ColumnNames(), labelled=False)
    table = table_of(["我们 Ann"], name="the texts", positional=named)
    assert next(stream_sentences(table, ColumnNames())).texts == ("我", "们", "Ann")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', "line 1: 2 words, but 1 tag;"),
        ("a.csv", "tokens,tags\na b,O O\na b,O\n", "line 3: 2 words, but 1 tag;"),
        ("a.jsonl", '{"tokens": [], "tags": []}', "line 1: there are no words"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [null]}', "line 1: 'tags' is missing or null"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [""]}', "line 1: the tag of word 1 is empty"),
        ("a.jsonl", '{"tokens": ["a"]}', "cannot tell which column holds the labels"),
        ("a.conll", "a O\n\nb\n", "line 3: 1 column"),
        ("a.conll", "", "is empty"),
        ("a.jsonl", "", "is empty"),
        ("a.csv", "tokens,tags\n", "has no rows"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=rf"{name}.*{message}"):
        read_sentences(tmp_path / name, ColumnNames())


@pytest.mark.parametrize("words", ['["Ann", "saw"]', "['Ann', 'saw']", "['Ann' 'saw']"])
def test_words_to_tag_may_be_lists_that_were_written_as_text(tmp_path: Path, words: str):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("tokens",), (words,), ("[ 1 ] is",), ("['a', 'b",)])
    rows = stream_sentences(path, ColumnNames())
    assert next(rows).texts == ("Ann", "saw")
    assert next(rows).texts == ("[", "1", "]", "is")
    with pytest.raises(InputError, match=r"a.csv, line 4: 'tokens' looks like a list"):
        next(rows)


# Words as pieces, windows, and what taggers learn.


def _frame(tokenizer: Tokenizer) -> TextInputBuilder:
    config = EncoderConfig(vocab_size=tokenizer.vocab_size, hidden_size=128, num_attention_heads=2)
    return TextInputBuilder(tokenizer, config, 48)


WORDPIECES = ("un", "##wan", "##ted", "runn", "##ing", ",", "the", "x", "我", "们")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def test_every_word_has_a_piece(tmp_path: Path):
    from transformers import AutoTokenizer

    tokenizer = Tokenizer.wordpiece([*SPECIAL, *WORDPIECES])
    words = ["Unwanted", "x,the", "\u200b\x01", "running", "我们", "q"]
    pieces = encode_words(words, _frame(tokenizer))
    assert tokenizer.tokens(pieces["Unwanted"]) == ["un", "##wan", "##ted"]
    assert tokenizer.tokens(pieces["我们"]) == ["我", "们"]
    assert pieces["\u200b\x01"] == pieces["q"] == [tokenizer.unk_id]
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    known = [w for w in words if w != "\u200b\x01"]
    inputs = theirs(known, is_split_into_words=True, add_special_tokens=False)
    assert [i for w in known for i in pieces[w]] == inputs["input_ids"]


def test_byte_level_words_start_with_a_blank(tmp_path: Path):
    from tokenizers import pre_tokenizers
    from transformers import RobertaTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {t: i for i, t in enumerate([*special, *letters, "Ġa", "Ġab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ a\nĠa b\n")
    theirs = RobertaTokenizerFast(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), add_prefix_space=True
    )
    words = ["ab", "a,", "ba", "é"]
    inputs = theirs(words, is_split_into_words=True, add_special_tokens=False)
    plain = RobertaTokenizerFast(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    for number, tokenizer in enumerate((theirs, plain)):
        folder = tmp_path / str(number)
        tokenizer.save_pretrained(folder)
        pieces = encode_words(words, _frame(Tokenizer.load(folder)))
        assert [i for word in words for i in pieces[word]] == inputs["input_ids"]


def margin(window: WordWindow, word: int, size: int) -> int:
    """How far a word is from the nearer edge of a window; the sentence's ends are none."""
    left = size if window.start == 0 else word - window.start
    right = size if window.stop == size else window.stop - 1 - word
    return min(left, right)


@pytest.mark.parametrize("stride", [0, 3, 32])
def test_windows_answer_each_word_once_where_it_is_farthest_from_an_edge(stride: int):
    rng = random.Random(stride)
    for size in (0, 1, 7, 46, 47, 200):
        sizes = [rng.choice([1, 1, 1, 2, 5, 46]) for _ in range(size)]
        windows = split_into_windows(sizes, 46, stride)
        assert all(sum(sizes[w.start : w.stop]) <= 46 for w in windows)
        assert [i for w in windows for i in range(w.first, w.last)] == list(range(size))
        for window in windows:
            for word in range(window.first, window.last):
                others = [w for w in windows if w.start <= word < w.stop]
                assert margin(window, word, size) == max(margin(w, word, size) for w in others)


def test_neighbouring_windows_share_the_words_that_were_asked_for():
    windows = split_into_windows([1] * 100, 40, 10)
    assert [(w.start, w.stop) for w in windows] == [(0, 40), (30, 70), (60, 100)]
    assert [(w.first, w.last) for w in windows] == [(0, 35), (35, 65), (65, 100)]


def test_all_pieces_of_a_word_learn_its_tag():
    tokenizer = Tokenizer.wordpiece([*SPECIAL, *WORDPIECES])
    builder = _frame(tokenizer)
    row = Row(1, ("unwanted", "running", "unwanted", "x"), ("B-a", "B-b", "O", "B-a"))
    labels = ("B-a", "B-b", "I-a", "O")
    for tag_all, wanted in (
        (False, [-1, 0, -1, -1, 1, -1, 3, -1, -1, 0, -1]),
        (True, [-1, 0, 2, 2, 1, 1, 3, 3, 3, 0, -1]),
    ):
        task = TaggingTask(TaskSettings(name="tag", tag_all=tag_all), labels=labels)
        learnt = pack(task.encode([row], builder, training=True).examples).tags
        assert learnt is not None
        assert learnt.tolist() == wanted
        # In use the first piece answers.
        used = pack(task.encode([Row(1, row.texts)], builder, training=False).examples).tags
        assert used is not None
        assert (used >= 0).tolist() == [place in (1, 4, 6, 9) for place in range(11)]


def test_marginals_and_loss_are_those_of_all_paths():
    torch.manual_seed(0)
    crf = CRF(3, batch_first=True)
    lengths = [4, 1, 3]
    emissions = torch.randn(sum(lengths), 3)
    padded, mask = pad_sentences(emissions, lengths)
    marginals = log_marginals(crf, padded, mask).exp()
    start, between, end = (
        p.detach() for p in (crf.start_transitions, crf.transitions, crf.end_transitions)
    )
    for row, (length, own) in enumerate(zip(lengths, emissions.split(lengths), strict=True)):
        expected = torch.zeros(length, 3)
        total = 0.0
        for path in product(range(3), repeat=length):
            score = start[path[0]] + end[path[-1]] + sum(own[i, t] for i, t in enumerate(path))
            score += sum(between[a, b] for a, b in pairwise(path))
            total += float(score.exp())
            for i, t in enumerate(path):
                expected[i, t] += score.exp()
        assert torch.allclose(marginals[row, :length], expected / total, atol=1e-5)


def test_losses_count_words_and_divide_by_sentence():
    torch.manual_seed(0)
    labels = ("B-x", "I-x", "O")
    tokenizer = Tokenizer.blank([*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "a", "b"])
    task = TaggingTask(labels=labels)
    rows = [Row(1, ("a", "b", "a"), ("B-x", "I-x", "O")), Row(2, ("b",), ("O",))]
    builder = _frame(tokenizer)
    batch = pack(task.encode(rows, builder, training=True).examples)
    logits = torch.randn(batch.tokens, 3)
    words = logits[[1, 2, 3, 6]]
    plain = TaggingObjective()(logits, batch)
    expected = torch.nn.functional.cross_entropy(words, torch.tensor([0, 1, 2, 2]), reduction="sum")
    assert float(plain.total) == pytest.approx(float(expected), abs=1e-5)
    assert plain.count == 4
    crf = CRF(3, batch_first=True)
    loss = CrfObjective(crf=crf)(logits, batch)
    sentences = ((words[None, :3], [[0, 1, 2]]), (words[None, 3:], [[2]]))
    expected = sum(crf(emissions, torch.tensor(tags)) for emissions, tags in sentences)
    assert float(loss.total.detach()) == pytest.approx(-float(expected.detach()), abs=1e-5)
    assert loss.count == CrfObjective(crf=crf).count(batch) == 4
