"""Predictor: rows in memory, answers as transformers.pipeline gives them; half characters."""

import csv
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from PIL import Image
from sklearn.metrics import r2_score

import ownbert
from ownbert import (
    Embedder,
    Explainer,
    InputError,
    Predictor,
    evaluate,
    finetune,
    load_tokenizer,
    predict,
)
from ownbert.config.head_spec import HeadSpec
from ownbert.inference import pipeline
from ownbert.inspect.trace.model_trace import trace_folder
from support.tiny import change_config, made

Make = Callable[..., Predictor]


@pytest.fixture(scope="module")
def texts(topics: Path) -> list[str]:
    with (topics / "test.csv").open(newline="") as file:
        return [row["text"] for row in csv.DictReader(file)][:12]


@pytest.fixture(scope="module")
def predictor(classifier: Path) -> Predictor:
    return Predictor(classifier)


@pytest.fixture(scope="module")
def theirs(classifier: Path) -> Any:
    return transformers.pipeline("text-classification", model=str(classifier), device="cpu")


@pytest.fixture
def tiny(tmp_path: Path) -> Make:
    def make(head: str | HeadSpec, **config: Any) -> Predictor:
        made(tmp_path / "model", head)
        change_config(tmp_path / "model", **config)
        return Predictor(tmp_path / "model")

    return make


def alike(ours: Any, others: Any) -> bool:
    """The same lists and dicts, with numbers that differ by rounding."""
    if isinstance(ours, dict):
        return ours.keys() == others.keys() and all(alike(ours[k], others[k]) for k in ours)
    if isinstance(ours, list):
        return len(ours) == len(others) and all(map(alike, ours, others))
    if isinstance(ours, float):
        return ours == pytest.approx(others, abs=1e-5)
    return ours == others


def test_texts_are_answered_as_a_pipeline_answers_them(predictor, theirs, texts: list[str]):
    for data in (texts[0], texts, texts[:1]):
        assert alike(predictor(data), theirs(data))
        for top_k in (1, 2, None):
            assert alike(predictor(data, top_k=top_k), theirs(data, top_k=top_k))
    assert predictor([]) == []


def test_tables_files_and_mappings_are_rows(predictor, texts: list[str], tmp_path: Path):
    expected = predictor(texts)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    rows = [{"text": text} for text in texts]
    for data in (np.asarray(texts), tuple(texts), rows, {"text": texts}, pa.table({"text": texts})):
        assert alike(predictor(data), expected)
    assert alike(predictor(tmp_path / "texts.txt"), expected)
    assert alike(predictor({"text": texts[0]}), expected[0])
    assert alike(predictor(text=texts[0]), expected[0])


def test_labels_and_probabilities(predictor, texts: list[str]):
    probabilities = predictor.predict_proba(texts)
    assert probabilities.shape == (len(texts), 3) == (len(texts), len(predictor.labels))
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    labels = predictor.predict(texts)
    assert [predictor.labels[i] for i in probabilities.argmax(1)] == labels.tolist()
    assert predictor.predict(texts[0]) == labels[0]
    assert np.allclose(predictor.predict_proba(texts[0]), probabilities[0], atol=1e-6)


def test_a_stream_reads_no_further_than_it_must(
    predictor, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipeline, "_ROWS", 8)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    expected = predictor(texts)
    assert alike(list(predictor.stream(tmp_path / "texts.txt")), expected)
    assert alike(list(predictor.stream(str(tmp_path / "texts.txt"))), expected)
    taken: list[int] = []

    def endless():
        while True:
            taken.append(len(taken))
            yield texts[len(taken) % len(texts)]

    stream = predictor.stream(endless())
    assert {"label", "score"} == {*next(stream)}
    assert len(taken) == 8


def test_threads_take_turns(predictor, texts: list[str]):
    expected, found = predictor(texts), []
    threads = [threading.Thread(target=lambda: found.append(predictor(texts))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(alike(one, expected) for one in found)


def test_options_of_files_are_options_in_memory(classifier, predictor, texts, tmp_path, tiny):
    """Without an output they were accepted and did nothing."""
    cases: list[dict[str, Any]] = [
        {"threshold": 0.999},
        {"probabilities": True},
        {"threshold": 0.5, "top_k": 2},
        {"probabilities": True, "top_k": None},
    ]
    for given in cases:
        predict(classifier, texts, tmp_path / "out.jsonl", **given)
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        rows = [{name: row[name] for name in row if name != "text"} for row in rows]
        assert alike(rows, predict(classifier, texts, **given))
        assert alike(rows, predictor(texts, **given))
        assert alike(rows, list(predictor.stream(iter(texts), **given)))
        assert alike([rows[0]], predictor(texts[0], **given))
    assert predictor(texts, threshold=1.0)[0]["label"] is None
    for ask in (predictor, lambda *given, **options: list(predictor.stream(*given, **options))):
        with pytest.raises(InputError, match="threshold"):
            ask(texts, threshold=3)
    numbers = tiny("classification", ownbert_task={"name": "regress"})
    with pytest.raises(InputError, match="threshold does not apply to regress"):
        numbers(["a b"], threshold=0.5)


def test_predict_takes_what_a_predictor_takes(
    classifier, predictor, texts, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    assert alike(predict(classifier, texts[0]), predictor(texts[0]))
    assert alike(predict(classifier, texts, top_k=2), predictor(texts, top_k=2))
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text("text\n" + "\n".join(texts) + "\n")
    assert alike(predict(classifier, "new.csv"), predictor(texts))
    with pytest.raises(InputError, match=r"no such file: old\.csv"):
        predict(classifier, "old.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["new.csv"]
    predict(classifier, texts, tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == list(texts)
    assert [row["label"] for row in rows] == [found["label"] for found in predictor(texts)]


def test_functions_that_take_a_folder_take_what_was_opened(
    classifier, predictor, texts, pretrained, tmp_path
):
    assert alike(predict(predictor, texts[0]), predictor(texts[0]))
    explained = ownbert.explain(predictor, texts[:1])
    assert explained[0].texts == ownbert.explain(classifier, texts[:1])[0].texts
    chosen = ownbert.to_label(predictor, texts, count=2, train=(texts[:1], ["red"]))
    assert len(chosen) == 2
    assert texts[0] not in [row["text"] for row in chosen]
    embedder = ownbert.Embedder(pretrained)
    assert len(ownbert.topics(embedder, texts, count=2).of_text) == len(texts)
    ownbert.build_index(embedder, texts, tmp_path / "index")
    assert len(ownbert.Index(tmp_path / "index")) == len(texts)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "no rows: give a text"),
        (7, "data: rows must be given as"),
        ([None], "data, row 1: 'text' is missing or null"),
        ([("a", "b")], r"data: a row must be a text, not \('a', 'b'\)"),
        (Path("nowhere.txt"), "nowhere.txt"),
    ],
)
def test_what_is_no_row_of_the_task_is_one_line(predictor, data: Any, message: str):
    with pytest.raises(InputError, match=message) as found:
        predictor(data)
    assert len(str(found.value).splitlines()) == 1


def test_rows_in_memory_train_what_their_file_trains(pretrained: Path, topics: Path, tmp_path):
    with (topics / "train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    common = {"model": pretrained, "epochs": 1, "quiet": True}
    finetune(train=topics / "train.csv", output=tmp_path / "file", **common)
    finetune(train=pa.Table.from_pylist(rows), output=tmp_path / "memory", **common)
    one, two = (ownbert.load(tmp_path / name).state_dict() for name in ("file", "memory"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert "train.csv" not in (tmp_path / "memory" / "recipe.yaml").read_text()
    by_file = evaluate(tmp_path / "file", topics / "test.csv").values
    with (topics / "test.csv").open(newline="") as file:
        pairs = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    assert evaluate(tmp_path / "memory", pairs).values == by_file
    with pytest.raises(InputError, match="data, row 1: label 'pink' is not in the model"):
        evaluate(tmp_path / "memory", [("a", "pink")])


def test_pairs(tiny: Make):
    predictor = tiny("classification", ownbert_task={"name": "classify", "pair": True})
    answer = predictor(("a", "b"))
    assert {"label", "score"} == {*answer}
    assert alike(predictor({"text": "a", "text_pair": "b"}), answer)
    assert alike(predictor([("a", "b"), ("c", "d")])[0], answer)
    assert alike(predictor({"premise": ["a"], "hypothesis": ["b"]}), [answer])


def test_several_labels(tiny: Make):
    saved = {"name": "multilabel", "threshold": 0.5}
    predictor = tiny("classification", ownbert_task=saved)
    every = predictor("a b", top_k=None)
    scores = [each["score"] for each in every]
    assert scores == sorted(scores, reverse=True)
    assert len(every) == 3
    assert predictor("a b") == [each for each in every if each["score"] >= 0.5]
    assert sorted(predictor.predict("a b")) == sorted(e["label"] for e in predictor("a b"))
    texts = ["a b", "a", "c", "b b"]
    sets = predictor.predict(texts)
    sets[0] = [label for label in predictor.labels if label not in sets[0]]
    assert predictor.score(texts, sets) == 0.75


def test_numbers(tiny: Make):
    predictor = tiny("classification", ownbert_task={"name": "regress"})
    found = predictor(["a", "b c"])
    assert [[each["label"] for each in row] for row in found] == [[*predictor.labels]] * 2
    assert np.allclose(
        [[e["score"] for e in row] for row in found], predictor.predict(["a", "b c"])
    )
    texts = ["a", "b c", "c"]
    answers = np.asarray(predictor.predict(texts))
    truth = answers + np.asarray([[0.1], [0.0], [0.2]])
    data = {"text": texts, **dict(zip(predictor.labels, truth.T.tolist(), strict=True))}
    assert predictor.score(data) == pytest.approx(r2_score(truth, answers), rel=1e-3)
    with pytest.raises(InputError, match="regress gives no probabilities; use predict"):
        predictor.predict_proba(["a"])


def test_tags_are_of_words_with_their_characters(tiny: Make):
    predictor = tiny("tokens", id2label={"0": "B-X", "1": "I-X", "2": "O"})
    found = predictor("a  b c")
    tags, probabilities = predictor.predict("a  b c"), predictor.predict_proba("a  b c")
    assert len(tags) == len(probabilities) == 3
    for entity in found:
        assert {*entity} == {"entity_group", "score", "word", "start", "end"}
        assert "a  b c"[entity["start"] : entity["end"]] == entity["word"]
    assert predictor(["a  b c"]) == [found]
    words = predictor([["a", "b", "c"], ["d"]])
    assert [len(each) for each in predictor.predict([["a", "b", "c"], ["d"]])] == [3, 1]
    assert [each["score"] for each in words[0]] == [each["score"] for each in found]


def test_plain_tags_are_entities_too(tiny: Make):
    predictor = tiny("tokens")
    found, tags = predictor("a b"), predictor.predict("a b")
    spans = [(0, 3)] if tags[0] == tags[1] else [(0, 1), (2, 3)]
    assert [(each["start"], each["end"]) for each in found] == spans
    assert found[0]["entity_group"] == tags[0]


def test_questions(tiny: Make):
    predictor = tiny("span")
    answer = predictor(question="a", context="b c")
    assert {*answer} == {"score", "start", "end", "answer"}
    assert answer["answer"] == "b c"[answer["start"] : answer["end"]]
    assert alike(predictor([("a", "b c")]), [answer])
    assert alike(predictor({"question": ["a"], "context": ["b c"]}), [answer])
    assert predictor.predict(("a", "b c")) == answer["answer"]


def test_choices(tiny: Make):
    predictor = tiny("choice")
    answer = predictor(("a", ["b", "c"]))
    assert answer["text"] == ["b", "c"][answer["choice"]]
    assert sum(each["score"] for each in predictor(("a", ["b", "c"]), top_k=None)) == (
        pytest.approx(1, abs=1e-5)
    )
    assert predictor.predict([{"prompt": "a", "choices": ["b", "c"]}]).tolist() == [
        answer["choice"]
    ]
    assert [
        len(p) for p in predictor.predict_proba([("a", ["b", "c"]), ("a", ["b", "c", "d"])])
    ] == [2, 3]


def test_sentence_models_are_evaluated_without_finetuning(tmp_path: Path):
    made(tmp_path / "model")
    rows = [("a b", "a c", 1.0), ("a", "f", 0.25), ("c d", "d c", 0.75), ("e", "f a", 0.5)]
    (tmp_path / "pairs.tsv").write_text(
        "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{n}\n" for a, b, n in rows)
    )
    found = evaluate(tmp_path / "model", tmp_path / "pairs.tsv").values
    embedder = ownbert.Embedder(tmp_path / "model")
    one, two = (embedder.encode([row[i] for row in rows], normalize=True) for i in (0, 1))
    cosines = embedder.similarity(one, two).diagonal().numpy()
    expected = np.corrcoef(cosines, [row[2] for row in rows])[0, 1]
    # The cosines differ by .003, and a correlation divides their rounding (1e-7) by that.
    assert found["pearson"] == pytest.approx(expected, abs=1e-3)
    assert {*found} == {"pearson", "spearman"}
    assert evaluate(tmp_path / "model", rows).values == found
    with pytest.raises(InputError, match="has no task head"):
        evaluate(tmp_path / "model", [("a", "x"), ("b", "y")])


def test_images_in_memory(tmp_path: Path):
    pixels = np.random.default_rng(0).integers(0, 255, (6, 8, 8), dtype=np.uint8)
    images, labels = [Image.fromarray(one) for one in pixels], [*"ababab"]
    rows = [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]
    finetune("image", train=rows, output=tmp_path / "model", epochs=1, quiet=True)
    predictor = Predictor(tmp_path / "model")
    expected = predictor(pixels)
    assert [[*map(str, each[0])] for each in expected] == [["label", "score"]] * 6
    images[0].save(tmp_path / "one.png")
    for one in (
        images[0],
        pixels[0],
        pixels[0, ..., None],
        str(tmp_path / "one.png"),
        tmp_path / "one.png",
    ):
        assert alike(predictor(one), expected[0])
    for several in (images, [*pixels], {"image": images}):
        assert alike(predictor(several), expected)
    assert predictor.predict(images).tolist() == [each[0]["label"] for each in expected]
    by_rows = evaluate(tmp_path / "model", rows).values
    assert by_rows == evaluate(tmp_path / "model", (pixels, labels)).values
    with pytest.raises(InputError, match="no columns of images and labels among text"):
        evaluate(tmp_path / "model", [{"text": "a"}])


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
