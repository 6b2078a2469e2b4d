"""Vectors learnt from pairs, triples and scores; losses, measures, and the folder they leave."""

import json
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from transformers import AutoModel
from typer.testing import CliRunner

from ownbert import InputError, Predictor, evaluate, finetune, predict
from ownbert.batches.batch import pack
from ownbert.checkpoint import load
from ownbert.cli import app
from ownbert.inference.embedder import Embedder
from ownbert.inference.open_folder import open_folder
from ownbert.tasks.embed import EmbeddingTask
from ownbert.tasks.embedding_config import read_embedding_config
from ownbert.tasks.finetune_recipe import FinetuneModel, TaskSettings
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import TextInputBuilder
from support.floats import assert_close

TOPICS = ("red", "green", "blue")


def words(rng: random.Random, topic: str, number: int, side: int) -> str:
    """Words of a third of a topic, which pretraining knows nothing of; first and second texts
    (side 0 and 1) have no word in common."""
    own = [f"{topic}{4 * number + 2 * side + rng.randint(0, 1)}" for _ in range(5)]
    return " ".join([*own, f"w{rng.randint(0, 14) + 15 * side}"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, triples and scored pairs of nine narrow topics."""
    folder, rng = tmp_path_factory.mktemp("pairs"), random.Random(3)
    for name, count in (("train", 160), ("dev", 36), ("test", 54)):
        pairs, triples, scored = ["anchor,positive"], ["anchor,positive,negative"], []
        for i in range(count):
            topic, number = TOPICS[i % 3], i // 3 % 3
            one, two = words(rng, topic, number, 0), words(rng, topic, number, 1)
            pairs.append(f"{one},{two}")
            triples.append(f"{one},{two},{words(rng, topic, (number + 1) % 3, 1)}")
            other = rng.choice(TOPICS)
            score = 1 + 2 * (topic == other) + rng.random()
            scored.append(f"{score:.2f},{one},{words(rng, other, number, 1)}")
        (folder / f"{name}_pairs.csv").write_text("\n".join(pairs) + "\n")
        (folder / f"{name}_triples.csv").write_text("\n".join(triples) + "\n")
        (folder / f"{name}_scores.csv").write_text(
            "\n".join(["score,sentence1,sentence2", *scored]) + "\n"
        )
    return folder


def tune(model: Path, files: Path, kind: str, output: Path, **options):
    data = {"train": files / f"train_{kind}.csv", "dev": files / f"dev_{kind}.csv"}
    given = {"epochs": 4, "max_length": 24, "quiet": True, **data, **options}
    finetune("embed", model=model, output=output, **given)
    return output


@pytest.fixture(scope="module")
def ranker(files: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tune(pretrained, files, "pairs", tmp_path_factory.mktemp("ranker") / "ranker")


@pytest.fixture(scope="module")
def untrained(pretrained: Path) -> Embedder:
    return Embedder(pretrained)


def columns_of(path: Path, *places: int) -> list[list[str]]:
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    return [[row[place] for row in rows] for place in places]


# Learning.


def own_topic_found(embedder: Embedder, path: Path) -> float:
    """How often the nearest second text is of the same narrow topic."""
    one, two = columns_of(path, 0, 1)
    near = (embedder.encode(one, normalize=True) @ embedder.encode(two, normalize=True).T).argmax(1)
    return float(np.mean(near % 9 == np.arange(len(one)) % 9))


def test_it_learns_pairs(ranker: Path, untrained: Embedder, files: Path):
    test = files / "test_pairs.csv"
    before, after = (own_topic_found(e, test) for e in (untrained, Embedder(ranker)))
    assert before < 0.6
    assert after > 0.85
    scores = evaluate(ranker, test)
    assert list(scores.values) == ["mrr", "recall_at_1", "recall_at_5", "recall_at_10"]
    # Six of the 54 second texts are of the third of a topic that a first one is of.
    assert scores.recall_at_10 > 0.85
    assert scores.recall_at_1 <= scores.recall_at_5 <= scores.recall_at_10


def test_what_is_watched_is_in_the_log(ranker: Path):
    logged = [json.loads(line) for line in (ranker / "log.jsonl").read_text().splitlines()]
    held_out = [row for row in logged if row.get("evaluation")]
    assert len(held_out) == 4
    assert {"mrr", "recall_at_1", "recall_at_5", "recall_at_10", "loss"} <= held_out[0].keys()


def test_batches_are_not_cut(
    pretrained: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    losses = []
    for tokens in (16_384, 40):
        monkeypatch.setattr("ownbert.finetuning.finetuning_run.MICRO_TOKENS", tokens)
        folder = tune(
            pretrained, files, "pairs", tmp_path / str(tokens), max_steps=2, log_every=1, dev=None
        )
        logged = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        losses.append([row["contrastive_loss"] for row in logged if "contrastive_loss" in row])
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_it_learns_triples(pretrained: Path, files: Path, tmp_path: Path):
    folder = tune(pretrained, files, "triples", tmp_path / "out", epochs=3)
    one, two, three = columns_of(files / "test_triples.csv", 0, 1, 2)
    a, b, c = (Embedder(folder).encode(texts) for texts in (one, two, three))
    assert ((a * b).sum(1) > (a * c).sum(1)).mean() > 0.9
    assert evaluate(folder, files / "test_triples.csv").recall_at_10 > 0.7


def test_it_learns_scores(pretrained: Path, files: Path, tmp_path: Path):
    folder = tune(pretrained, files, "scores", tmp_path / "out")
    test = files / "test_scores.csv"
    scores = evaluate(folder, test)
    assert list(scores.values) == ["spearman", "pearson"]
    assert scores.pearson > 0.8
    predict(folder, test, tmp_path / "p.jsonl")
    found = [json.loads(line)["score"] for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    truth, one, two = columns_of(test, 0, 1, 2)
    numbers = [float(t) for t in truth]
    assert scores.pearson == pytest.approx(pearsonr(found, numbers)[0], abs=1e-5)
    assert scores.spearman == pytest.approx(spearmanr(found, numbers)[0], abs=1e-3)
    vectors = [Embedder(folder).encode(texts) for texts in (one, two)]
    assert_close(found, (vectors[0] * vectors[1]).sum(1))


# The folder.


@pytest.mark.parametrize("pooling", [None, "first", "max"])
def test_the_same_as_sentence_transformers(
    ranker: Path, pretrained: Path, files: Path, tmp_path: Path, pooling: str | None, capfd
):
    library = pytest.importorskip("sentence_transformers")
    folder = ranker
    if pooling:
        folder = tune(
            pretrained,
            files,
            "pairs",
            tmp_path / "out",
            epochs=1,
            overrides=[f"task.pooling={pooling}"],
        )
    assert read_embedding_config(folder).pooling == (pooling or "mean")
    texts = [*columns_of(files / "test_pairs.csv", 0)[0][:9], "", "red1 " * 100]
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        theirs = library.SentenceTransformer(str(folder), device="cpu")
    assert "newly initialized" not in "".join(capfd.readouterr())
    assert theirs.max_seq_length == 24
    expected = theirs.encode(texts)
    found = Embedder(folder).encode(texts)
    assert_close(found, expected)
    assert_close(np.linalg.norm(found, axis=1), 1)
    predictor = open_folder(folder)
    (answer,) = predictor([Row(1, (texts[0], texts[-1]))])
    assert_close(answer.vectors, expected[[0, -1]])
    assert predictor.cut == 1


def test_the_folder_is_a_plain_encoder_with_its_pooler(ranker: Path, pretrained: Path):
    config = json.loads((ranker / "config.json").read_text())
    assert config["architectures"] == ["BertModel"]
    assert config["ownbert_task"]["name"] == "embed"
    model, loading = AutoModel.from_pretrained(ranker, output_loading_info=True)
    assert not any(loading.values())
    before = AutoModel.from_pretrained(pretrained)
    torch.testing.assert_close(model.pooler.dense.weight, before.pooler.dense.weight)
    layer = [m.encoder.layer[0].output.dense.weight for m in (model, before)]
    assert not torch.equal(*layer)
    assert load(ranker).pooler is not None


def test_a_pair_gets_the_same_cosine_in_any_company(ranker: Path, files: Path):
    predictor = open_folder(ranker)
    rows = list(predictor.task.stream(files / "test_pairs.csv"))
    together, alone = predictor(rows), [predictor([row])[0] for row in rows]
    for one, other in zip(together, alone, strict=True):
        assert one.cosine == pytest.approx(other.cosine, abs=1e-5)


# Mistakes and odd rows.


def test_pairs_follow_what_an_embedder_has_saved(ranker: Path, tmp_path: Path):
    embedder = Embedder(ranker, prompts={"mine": "red1 "}, default_prompt_name="mine")
    embedder.max_seq_length = 5
    embedder.save(tmp_path / "copy")
    pair = ("red1 w1 w2 w3 w4", "w16 red3")
    one, two = embedder.encode(list(pair), normalize=True)
    cosine = float(one @ two)
    assert Predictor(tmp_path / "copy").predict([pair]).item() == pytest.approx(cosine, abs=1e-5)


def test_pooling_is_that_of_the_folder(ranker: Path, files: Path, tmp_path: Path):
    Embedder(ranker).save(tmp_path / "first")
    path = tmp_path / "first/1_Pooling/config.json"
    path.write_text('{"pooling_mode_cls_token": true}')
    data = {"train": files / "dev_pairs.csv", "dev": files / "dev_pairs.csv", "epochs": 1}
    tune(tmp_path / "first", files, "pairs", tmp_path / "out", **data)
    assert Embedder(tmp_path / "out").embedding_config.pooling == "first"
    pair = ("red1 w1 w2", "red3 w16")
    one, two = Embedder(tmp_path / "out").encode(list(pair))
    cosine = Predictor(tmp_path / "out").predict([pair]).item()
    assert cosine == pytest.approx(float(one @ two), abs=1e-5)
    task = EmbeddingTask(TaskSettings(name="embed", pooling="max"))
    task.describe_base(FinetuneModel(folder=str(tmp_path / "first")))
    assert task.pooling == "max"


def test_scores_that_are_all_the_same_and_rows_of_two_kinds(
    pretrained: Path, files: Path, tmp_path: Path
):
    (tmp_path / "same.csv").write_text("text1,text2,score\nred1,red2,3\nred2,red3,3\n")
    with pytest.raises(
        InputError,
        match=r"same.csv: all rows have the score 3; at least two different scores are needed",
    ):
        tune(pretrained, files, "pairs", tmp_path / "out", train=tmp_path / "same.csv")
    for kind, message in (
        ("pairs", "dev_scores.csv: its rows have a score, and the training data .* has none"),
        ("scores", "dev_pairs.csv: its rows have no score, and the training data .* has"),
    ):
        other = files / f"dev_{'scores' if kind == 'pairs' else 'pairs'}.csv"
        with pytest.raises(InputError, match=message):
            tune(pretrained, files, kind, tmp_path / "out", dev=other)
    with pytest.raises(InputError, match=r"run.measure is 'spearman'; embed has mrr, recall_at_1"):
        tune(pretrained, files, "pairs", tmp_path / "out", measure="spearman")
    assert not (tmp_path / "out").exists()


def test_settings_that_cannot_be():
    with pytest.raises(
        InputError, match=r"task.pooling is 'attention'; embed supports mean, first"
    ):
        EmbeddingTask(TaskSettings(name="embed", pooling="attention"))
    with pytest.raises(InputError, match=r"task.rdrop does not apply to embed"):
        EmbeddingTask(TaskSettings(name="embed", rdrop=1.0))


def test_single_texts_are_for_another_command(ranker: Path, tmp_path: Path):
    (tmp_path / "one.txt").write_text("red1 red2\n")
    (tmp_path / "one.csv").write_text("text\nred1 red2\n")
    for name in ("one.txt", "one.csv"):
        with pytest.raises(InputError, match=r"two (are needed|texts per row).*use ownbert embed"):
            predict(ranker, tmp_path / name, tmp_path / "p.jsonl")
    assert not (tmp_path / "p.jsonl").exists()


def test_a_model_of_pairs_is_measured_by_scores_too(ranker: Path, files: Path):
    scores = evaluate(ranker, files / "test_scores.csv")
    assert scores.spearman > 0.5


def test_texts_are_numbered_and_long_ones_counted(ranker: Path, files: Path):
    predictor, task = open_folder(ranker), EmbeddingTask()
    builder = TextInputBuilder(predictor.tokenizer, predictor.models[0].config, 8)
    rows = [Row(1, ("red1", "red2", "w1")), Row(2, ("red2", "red3 " * 9, "red1"))]
    task.learn(rows, "")
    data = task.encode(rows, builder, training=True)
    assert data.truncated == 1
    assert [e.parts for e in data.examples] == [(3, 3, 3), (3, 8, 3)]
    assert pack(list(data.examples)).labels.tolist() == [[0, 1, 2], [1, 3, 0]]  # pyright: ignore


@pytest.mark.parametrize("name", ["embed", "rank"])
def test_the_command_has_two_names(name: str, pretrained: Path, files: Path, tmp_path: Path):
    assert CliRunner().invoke(app, ["finetune", name, "--help"]).exit_code == 0
    names = ["--model", str(pretrained), "--train", str(files / "train_pairs.csv")]
    options = ["--temperature", "0.1", "--pooling", "max", "--dry-run"]
    done = CliRunner().invoke(app, ["finetune", name, *names, *options])
    assert done.exit_code == 0, done.output
    assert "160 training and no dev pairs, from" in done.stdout
    assert "name: embed" in done.stdout
    assert "temperature: 0.1" in done.stdout
