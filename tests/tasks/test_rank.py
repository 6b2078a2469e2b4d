"""Vectors learnt from pairs, triples and scores; losses, measures, and the folder they leave."""

import json
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import pearsonr, spearmanr
from transformers import AutoModel
from typer.testing import CliRunner

from ownbert import InputError, Predictor, evaluate, predict
from ownbert.batches.batch import Batch, Example, pack
from ownbert.checkpoint import load
from ownbert.cli import app
from ownbert.inference.embedder import Embedder
from ownbert.inference.open_folder import open_folder
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.embed import EmbeddingTask, ranks, retrieval_metrics
from ownbert.tasks.embedding_config import read_embedding_config
from ownbert.tasks.finetune_recipe import FinetuneModel, TaskSettings
from ownbert.tasks.row_objectives import ContrastiveObjective, CosineObjective
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import TextInputBuilder, join
from support.floats import assert_close
from support.task_runs import assert_same_in_any_company, read_jsonl, tuned

TOPICS = ("red", "green", "blue")
SCORED = "score,sentence1,sentence2"


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
        pairs, triples, scored = ["anchor,positive"], ["anchor,positive,negative"], [SCORED]
        for i in range(count):
            topic, number = TOPICS[i % 3], i // 3 % 3
            one, two = words(rng, topic, number, 0), words(rng, topic, number, 1)
            pairs.append(f"{one},{two}")
            triples.append(f"{one},{two},{words(rng, topic, (number + 1) % 3, 1)}")
            other = rng.choice(TOPICS)
            score = 1 + 2 * (topic == other) + rng.random()
            scored.append(f"{score:.2f},{one},{words(rng, other, number, 1)}")
        for kind, lines in (("pairs", pairs), ("triples", triples), ("scores", scored)):
            (folder / f"{name}_{kind}.csv").write_text("\n".join(lines) + "\n")
    return folder


def tune(model: Path, files: Path, kind: str, output: Path, *overrides: str, **options) -> Path:
    data = {"train": files / f"train_{kind}.csv", "dev": files / f"dev_{kind}.csv"}
    options = {"epochs": 4, "max_length": 24, **data, **options}
    tuned("embed", files, model, output, *overrides, **options)
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
    held_out = [row for row in read_jsonl(ranker / "log.jsonl") if row.get("evaluation")]
    assert len(held_out) == 4
    assert {"mrr", "recall_at_1", "recall_at_5", "recall_at_10", "loss"} <= held_out[0].keys()


def test_batches_are_not_cut(
    pretrained: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    losses = []
    for tokens in (16_384, 40):
        monkeypatch.setattr("ownbert.finetuning.finetuning_run.MICRO_TOKENS", tokens)
        options: dict = {"max_steps": 2, "log_every": 1, "dev": None}
        folder = tune(pretrained, files, "pairs", tmp_path / str(tokens), **options)
        logged = read_jsonl(folder / "log.jsonl")
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
    found = [row["score"] for row in read_jsonl(tmp_path / "p.jsonl")]
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
        output, override = tmp_path / "out", f"task.pooling={pooling}"
        folder = tune(pretrained, files, "pairs", output, override, epochs=1)
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
    assert_same_in_any_company(ranker, files / "test_pairs.csv")


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


# What rows of vectors to be learnt say by their columns.


def read(tmp_path: Path, text: str, columns: ColumnNames | None = None) -> list[Row]:
    (tmp_path / "rows.csv").write_text(text)
    return EmbeddingTask(columns=columns).read(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("text", "texts", "target"),
    [
        ("id,query,document\n1,a,b\n", "ab", None),
        ("anchor,positive,negative\na,b,c\n", "abc", None),
        ("anchor,positive,negative_1,negative_2\na,b,c,d\n", "abcd", None),
        ("anchor,positive,negative_1\na,b,c\n", "abc", None),
        ("score,sentence1,sentence2,genre\n2.5,a,b,news\n", "ab", 2.5),
    ],
)
def test_what_columns_say(tmp_path: Path, text: str, texts: str, target: float | None):
    (row,) = read(tmp_path, text)
    assert (row.texts, row.target) == (tuple(texts), target)
    (row,) = read(tmp_path, "x,y,z\na,b,3\n", ColumnNames("y", "x", "z"))
    assert (row.texts, row.target) == (("b", "a"), 3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,score\na,1\n", "rows.csv has one text per row, but two are needed; name"),
        ("text1,text2,score\na,b,1\na,b,much\n", "rows.csv, line 3: 'score' has 'much'; a score"),
        ("text1,text2,score\na,b,nan\n", "rows.csv, line 2: 'score' has 'nan'"),
        ("text1,text2,score\na,b,\n", "rows.csv, line 2: 'score' has ''"),
        ("text1,text2\n", "rows.csv has no rows"),
        ("anchor,positive,negative,score\na,b,c,1\n", "both a column of scores, 'score', and one"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_a_real_file(shared_data: Path):
    task = EmbeddingTask()
    for name, count in (("train", 5749), ("dev", 1500), ("test", 1379)):
        rows = task.read(shared_data / "stsb" / f"{name}.tsv")
        assert len(rows) == count
        if name == "train":
            task.learn(rows, "train.tsv")
            assert task.scale == (0.0, 5.0)
            assert task.metrics == ("spearman", "pearson")
        task.check(rows, name, "the training data")
    assert rows[0].texts == ("A girl is styling her hair.", "A girl is brushing her hair.")
    assert rows[0].target == 2.5


# Losses of vectors and ranks of texts, against plain code and sentence-transformers.


def batch_of(*rows: list[str], score: list[float] | None = None) -> Batch:
    """Any tokens; labels as ``EmbeddingTask`` makes them."""
    task, numbers, examples = EmbeddingTask(), {}, []
    task.learnt = True
    task.scale = None if score is None else (1.0, 5.0)
    for i, texts in enumerate(rows):
        row = Row(i, tuple(texts), None if score is None else score[i])
        ids = np.arange(2)
        parts = [Example(ids, ids) for _ in texts]
        examples.append(join(parts, **task._label(row, numbers)))
    return pack(examples)


def test_the_loss_of_scores_is_that_of_plain_torch():
    batch = batch_of(["a", "b"], ["a", "c"], ["d", "e"], score=[1, 5, 2])
    torch.manual_seed(0)
    vectors = torch.randn(6, 7)
    loss = CosineObjective()(vectors, batch)
    cosines = F.cosine_similarity(vectors[0::2], vectors[1::2])
    torch.testing.assert_close(loss.total, ((cosines - torch.tensor([0, 1, 0.25])) ** 2).sum())
    assert loss.count == CosineObjective().count(batch) == 3


def info_nce(rows: list[list[str]], vectors: torch.Tensor, temperature: float) -> torch.Tensor:
    """Row by row, with what is no wrong answer left out."""
    size = len(rows[0])
    v = F.normalize(vectors, dim=1).view(len(rows), size, -1)
    total = torch.zeros(())
    for i, row in enumerate(rows):
        alike = [bool({*row[:2]} & {*other[:2]}) for other in rows]
        others = [j for j in range(len(rows)) if j != i and not alike[j]]
        forth = [v[i, 0] @ v[j, 1] for j in [i, *others]]
        for k in range(2, size):
            forth += [v[i, 0] @ v[j, k] for j in range(len(rows)) if rows[j][k] not in row[:2]]
        back = [v[i, 1] @ v[j, 0] for j in [i, *others]]
        for cosines in (forth, back):
            total = total - (torch.stack(cosines) / temperature).log_softmax(0)[0] / 2
    return total


@pytest.mark.parametrize(
    "rows",
    [
        [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]],
        [["a", "b"], ["c", "b"], ["a", "f"], ["b", "h"], ["x", "y"]],
        [["a", "b", "n"], ["c", "d", "m"], ["e", "f", "b"]],
        [["a", "b", "c"], ["c", "b", "n"], ["x", "y", "x"]],
        [["a", "b", "m", "n"], ["c", "d", "a", "m"], ["e", "b", "x", "y"]],
        [["a", "b"]],
    ],
)
def test_the_contrastive_loss_is_that_of_plain_torch(rows: list[list[str]]):
    torch.manual_seed(1)
    vectors = torch.randn(sum(map(len, rows)), 7, requires_grad=True)
    batch, objective = batch_of(*rows), ContrastiveObjective(temperature=0.2)
    loss = objective(vectors, batch)
    expected = info_nce(rows, vectors, 0.2)
    torch.testing.assert_close(loss.total, expected)
    found = torch.autograd.grad(loss.total, vectors, retain_graph=True)[0]
    torch.testing.assert_close(found, torch.autograd.grad(expected, vectors)[0])
    assert loss.count == objective.count(batch) == len(rows)


def test_the_contrastive_loss_is_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    theirs = losses.MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    torch.manual_seed(2)
    one, two, three = torch.randn(3, 5, 7)
    rows = [[f"a{i}", f"b{i}", f"c{i}"] for i in range(5)]
    vectors = torch.stack((one, two, three), 1).flatten(0, 1)
    ours = ContrastiveObjective(temperature=0.05)(vectors, batch_of(*rows)).total / 5
    forth = theirs.compute_loss_from_embeddings([one, two, three], None)
    back = theirs.compute_loss_from_embeddings([two, one], None)
    torch.testing.assert_close(ours, (forth + back) / 2)


def test_ranks_are_those_of_a_slow_search(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    names = [(f"q{rng.integers(12)}", f"d{rng.integers(15)}") for _ in range(40)]
    names += [("d3", "d4"), ("x", "x")]  # a first text among the second ones
    table = {t: rng.normal(size=5) for pair in names for t in pair}
    table["d1"] = table["d2"]  # different texts of one vector
    table = {text: v / np.linalg.norm(v) for text, v in table.items()}
    vectors = np.stack([[table[a], table[b]] for a, b in names])
    expected = []
    for first, second in names:
        right = {b for a, b in names if a == first} | {first}
        others = {b for _, b in names} - right
        mine = table[first] @ table[second]
        expected.append(1 + sum(table[first] @ table[other] >= mine - 1e-12 for other in others))
    np.testing.assert_array_equal(ranks(names, vectors[:, 0], vectors[:, 1]), expected)
    monkeypatch.setattr("ownbert.tasks.embed._CHUNK", 50)
    np.testing.assert_array_equal(ranks(names, vectors[:, 0], vectors[:, 1]), expected)
    found = retrieval_metrics(np.asarray([1, 2, 6, 11, 1]))
    assert found["recall_at_1"] == 0.4
    assert found["recall_at_5"] == 0.6
    assert found["recall_at_10"] == 0.8
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 6 + 1 / 11 + 1) / 5)


def test_who_finds_all_texts_alike_finds_nothing():
    names = [(f"q{i}", f"d{i}") for i in range(20)]
    assert ranks(names, np.ones((20, 1)), np.ones((20, 1))).tolist() == [20] * 20
