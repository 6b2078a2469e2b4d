"""The networks of ``fit``: pretrained, fine-tuned, and distilled from the blend (knowledge
distillation, Hinton et al. 2015).

The teachers of a distilled network were trained only on the first fold's training rows, so its
metric on the first fold's held-out rows is not biased by labels of these rows.
"""

import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ownbert.checkpoint import CONFIG, Description, describe, load, load_tokenizer, save
from ownbert.checkpoint.description import ANSWERS, agrees, record_agreement
from ownbert.corpus.learn_vocabulary import learn_vocabulary
from ownbert.corpus.store import prepare
from ownbert.corpus.store_writer import INDEX
from ownbert.files.text_files import own_text
from ownbert.files.writing import make_folder
from ownbert.finetuning.default_settings import DefaultSettings, peak_rate
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.token_scores import can_hold_means, with_mean_layer
from ownbert.fitting.comparison import Comparison
from ownbert.fitting.rows.fit_input import FitInput
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.inference.blend import BlendMember
from ownbert.inference.decisions import decides
from ownbert.inference.engines import Compute
from ownbert.inference.finished_files import copy_files, network_files
from ownbert.inference.opened_blend import Members, score_until
from ownbert.language.messages import Message
from ownbert.pretraining.pretraining_run import pretrain
from ownbert.run.file_names import RECIPE
from ownbert.settings import resolve
from ownbert.tasks.embedding_config import read_pooling
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.rows import Row
from ownbert.tasks.task import KEY, Task
from ownbert.tasks.text_input import UnknownWords
from ownbert.time_limit import clock_seconds, time_limit
from ownbert.train.device import pick_device
from ownbert.train.log import read_log
from ownbert.train.loop import Callbacks
from ownbert.train.state import newest_state, remove_states
from ownbert.views.blending import from_scores
from ownbert.views.tokens import written_tokens
from ownbert.views.view_features import Texts

# Maximum vocabulary size for pretraining on a CPU, by its duration: rare words cost time and memory
# and gain little. But with 6,000 instead of 20,000 words the names that distinguish 150 articles
# are split into pieces, and the distilled network lost 8 to 13 points (docs/lab/pretraining.md).
_FEWEST_WORDS, _WORDS_PER_MINUTE = 20_000, 2_500
# Maximum characters of unlabelled text per second of pretraining, on a CPU and on a GPU. A core
# trains on 75,000. Learning the vocabulary of a million takes one second on an idle core, and
# several on a busy one.
_CHARACTERS_PER_SECOND, _CHARACTERS_ON_GPU = 250_000, 1_000_000
# What differs from the defaults of pretrain on a GPU, where a step of a larger network with more
# tokens takes hardly longer: in 3 minutes mini with batches of 16,384 gave .930 on dev rows of the
# sample with 20 labels per class, of 2,048 .926, and tiny .914 (docs/lab/machine.md).
_ON_GPU = {"size": "mini", "batch_tokens": 16_384}
# Labelled texts in which words missing in a vocabulary are counted.
_EXAMINED = 1000
# Minimum seconds of a training.
_SHORTEST = 2.0
# Minimum passes over the texts, plus the equivalent of .4 of a pass for the teacher's predictions.
_STUDENT_PASSES = 2.4
# Maximum share of the time for the teacher's predictions.
_TEACHING = 0.35
# Networks with a smaller share of the blend's weight are not teachers: they would take most of that
# time.
_LEAST_PART = 0.1
# Share of masked tokens in unlabelled texts, if the network was pretrained on such texts: a student
# with harder inputs than its teacher can exceed it (Xie et al. 2020). Masking was worse for
# sentence models and for mixed texts (docs/lab/distilled-network.md).
_STUDENT_MASKED = 0.3
# Learning rate of a network with built-in linear models, relative to others. It forgets them with a
# larger rate, and masked tokens have no scores (docs/lab/distilled-network.md).
_RATE_OF_JOINED = 0.3
# Maximum number of mixed texts per labelled text, and in total.
_MIXED, _MOST_TEXTS = 8, 100_000

# Minimum characters of a piece.
_SHORTEST_PIECE = 40
# Maximum tokens of a span in a mixed text. With 2, 10 and 20 the distilled network was worse
# (docs/lab/distilled-network.md).
_LONGEST_SPAN = 5
# A mixed text with more than _LONG tokens has at most _MOST_SOURCES source texts. Long mixtures of
# many texts would all be similar, with similar predictions (docs/lab/distilled-network.md).
_LONG, _MOST_SOURCES = 40, 3


def pretrain_on(
    inputs: FitInput,
    folder: Path,
    *,
    seconds: float,
    speed: float,
    on_save: Callable[[Path, Mapping[str, Any]], object] | None = None,
) -> Path:
    """Pretrain a network on the unlabelled texts and the texts of the rows, within ``seconds``.
    Finished files in ``folder`` are reused; its texts are removed once the network is finished.

    ``speed``: see ``Budget``; on a busy machine fewer texts are used. ``on_save`` is called each
    time the network is saved.
    """
    start, store, network = clock_seconds(), folder / "tokens", folder / "network"
    if is_pretrained(folder):
        return network
    make_folder(folder)
    recipe, resumed = inputs.recipe, newest_state(network) is not None
    cpu = pick_device(recipe.device).type == "cpu"
    if not (resumed and (store / INDEX).exists()):  # other texts could not be resumed
        most = int(seconds * speed * (_CHARACTERS_PER_SECOND if cpu else _CHARACTERS_ON_GPU))
        words = max(_FEWEST_WORDS, round(_WORDS_PER_MINUTE * seconds / 60)) if cpu else None
        _prepare(inputs, store, network, most, words)
    left = max(_SHORTEST, seconds - (clock_seconds() - start))
    with time_limit(left / 2):  # for the steps before the training
        pretrain(
            store,
            network,
            # A resumed run may change its device.
            **({} if resumed else _size_and_batch(recipe.size, cpu)),
            max_minutes=left / 60,
            device=recipe.device,
            seed=recipe.seed,
            resume=resumed,
            quiet=True,
            with_card=False,
            callbacks=Callbacks(on_save=on_save),
        )
    remove_states(network)
    shutil.rmtree(store, ignore_errors=True)  # it contains the tokenised texts
    return network


def _prepare(inputs: FitInput, store: Path, network: Path, most: int, words: int | None) -> None:
    """Learn a vocabulary of ``words`` from up to ``most`` characters of text, if ``network`` has
    none, and write their tokens to ``store``."""
    rows, corpus = inputs.rows, inputs.corpus
    with tempfile.TemporaryDirectory(prefix="ownbert-texts-") as scratch:
        text_file = own_text(Path(scratch, "rows.txt"))
        with open(text_file, "w", encoding="utf-8") as file:
            for row in rows.texts(rows.learnt):
                file.write("".join(" ".join(text.split()) + "\n" for text in row if text.strip()))
        unlabelled = own_text(Path(scratch, "unlabelled.txt"))
        paths = [*corpus.files_up_to(most, unlabelled, inputs.recipe.seed), text_file]
        options: dict[str, Any] = {"text_column": corpus.text_column} if corpus.text_column else {}
        if not (network / "vocab.txt").exists():
            form = "blank" if inputs.kind == "ids" else "wordpiece"
            learn_vocabulary(paths, network, kind=form, vocab_size=words, **options)
        prepare(paths, store, tokenizer=network, **options)


def _size_and_batch(size: str | None, cpu: bool) -> dict[str, Any]:
    """Options of ``pretrain`` on a device."""
    options = {} if cpu else _ON_GPU
    return options if size is None else {**options, "size": size}


def is_pretrained(folder: Path) -> bool:
    """Whether ``pretrain_on`` has finished the network in a folder."""
    network = folder / "network"
    return (network / CONFIG).exists() and newest_state(network) is None


def finetune_on(
    rows: LabelledRows,
    learnt: Sequence[Row],
    base: Path,
    folder: Path,
    *,
    seconds: float,
    **options: Any,
) -> Path:
    """Fine-tune ``base`` on rows, which may have soft targets, and save it in ``folder``; for the
    options see ``finetuning_run``.

    All epochs are run, or fewer if the time does not suffice; held-out rows are not used.
    """
    start, finetuned = clock_seconds(), FinetuneFolder(folder, resume=True)
    if finetuned.finished:
        return folder
    run = finetuning_run(rows, learnt, base, **options)
    # Encoding the rows has taken time too.
    left = max(_SHORTEST, seconds - (clock_seconds() - start))
    run.recipe = replace(run.recipe, run=replace(run.recipe.run, max_minutes=left / 60))
    run.train(finetuned, quiet=True)
    return folder


def start_on(
    rows: LabelledRows, learnt: Sequence[Row], base: Path, folder: Path, **options: Any
) -> bool:
    """Save ``base`` in ``folder`` with a head fitted to the rows and an otherwise frozen network;
    return False if ``finetune_on`` would not start from such a head."""
    run = finetuning_run(rows, learnt, base, **options)
    if run.starts_linear:
        run.save_start(folder)
    return run.starts_linear


def rate_after_start(rows: LabelledRows, trained: Path) -> float:
    """The learning rate for a public network whose head is trained."""
    size = describe(trained).config.hidden_size
    return DefaultSettings(len(rows.first_fold[0]), size, linear=True).learning_rate


def with_means(model: Path, folder: Path) -> Path:
    """The network to fine-tune: that of ``model``, or, if its text vectors are means, a copy in
    ``folder`` whose classifier, as Transformers loads it, reads the mean of all tokens."""
    if read_pooling(model) != "mean":
        return model
    network = load(model, heads=[], pooler=False)
    if not can_hold_means(network):
        return model
    save(with_mean_layer(network), folder, tokenizer=load_tokenizer(model))
    return folder


def warnings_of(rows: LabelledRows, base: Description) -> list[str]:
    """Warnings if a network has learnt labels before, or if its vocabulary does not fit the texts
    of the rows."""
    task, sample = rows.task, [rows.rows[i] for i in rows.learnt[:_EXAMINED]]
    builder = task.input_builder(base, task.max_length)
    unknown = UnknownWords(builder.tokenizer)
    examples = task.encode(sample, builder, training=False).examples
    unknown.count([example.token_ids for example in examples], task.texts_of(sample))
    warnings = [unknown.warning()]
    if KEY in base.values:
        warnings.append(
            Message(
                "warning: {folder} was trained on labels; if those of the held-out rows were "
                "among them, its scores are too high: give rows that it has not seen with "
                "{--dev}",
                base.folder,
            )
        )
    return [warning for warning in warnings if warning is not None]


def finetuning_run(
    rows: LabelledRows,
    learnt: Sequence[Row],
    base: Path,
    *,
    device: str,
    seed: int,
    settings: dict[str, Any] | None = None,
) -> FinetuningRun:
    """The fine-tuning run of ``base`` on rows, which may have soft targets."""
    task, of_task = rows.task, rows.task.settings
    of_task = replace(of_task, threshold=None)  # that of the blend is chosen afterwards
    if task.name == "classify":  # the blend already corrects for rare labels
        of_task = replace(of_task, class_weights="equal")
    options = {"model.folder": str(base), "seed": seed, "device": device, **(settings or {})}
    options |= task.columns.settings()
    recipe = resolve(FinetuneRecipe, base=FinetuneRecipe(task=of_task), options=options)
    splits = (_with_all_labels(rows, learnt), None)
    return FinetuningRun(recipe, splits, labels=task.labels, with_card=False)


def _with_all_labels(rows: LabelledRows, learnt: Sequence[Row]) -> Sequence[Row]:
    """The rows, one of them with a distribution as its target, so that all labels are known."""
    task = rows.task
    labels = {row.target for row in learnt if isinstance(row.target, str)}
    if task.name != "classify" or labels == set(task.labels):
        return learnt
    first = next(i for i, row in enumerate(learnt) if isinstance(row.target, str))
    one_hot = tuple(float(label == learnt[first].target) for label in task.labels)
    return [*learnt[:first], replace(learnt[first], target=one_hot), *learnt[first + 1 :]]


def copy_network(source: Path, target: Path) -> None:
    """Make ``target`` an ordinary model folder with the network of ``source``."""
    copy_files(source, target, network_files(source))


def calibrate_network(folder: Path, task: Task, factor: float, offsets: np.ndarray) -> None:
    """Scale the network's outputs by a factor, add offsets (C), and write how the task decides.

    The network alone then predicts the same as a blend with it as the only member.
    """
    description = describe(folder)
    agreed = agrees(description, [ANSWERS])
    model, values = load(description), dict(description.values)
    last = cast(Any, model.heads["classification"]).dense
    with torch.no_grad():
        last.weight *= factor
        last.bias.copy_(last.bias * factor + torch.as_tensor(offsets, dtype=last.bias.dtype))
    values[KEY] = {**values.get(KEY, {}), **decides(task)}
    save(model, folder, architecture=description.architecture, values=values)
    if agreed:  # the layers that bfloat16 affects are the same
        record_agreement(folder, ANSWERS)


def teach(
    compared: Comparison,
    inputs: FitInput,
    folder: Path,
    base: Path,
    path: Path,
    *,
    public: bool,
    seconds: float,
) -> None:
    """Fine-tune a network on the blend's predictions for texts and on the labelled rows, and save
    it in ``path``.

    ``folder``: that of the candidates; ``base``: their fine-tuned network, or a wider copy of it
    with built-in linear models; ``public``: whether it is a public network, whose learning rate is
    smaller.

    Raises:
        OutOfTime: the time limit has passed.
    """
    start, rows, recipe = clock_seconds(), compared.rows, inputs.recipe
    pretrained = inputs.pretrains  # on these texts
    finetuned = folder / next(c for c in compared.candidates if c.name == "network").first[0]
    wide, narrow = (describe(own).config.hidden_size for own in (base, finetuned))
    most = seconds * _texts_per_second(finetuned) * (narrow / wide) / _STUDENT_PASSES
    count = max(1, int(most) - len(rows.learnt))
    own = (inputs.labelled, inputs.similar)
    pieces, mixed = taught_texts(rows, *own, count, mix=pretrained, seed=recipe.seed)
    texts = [(text,) for text in (*pieces, *mixed)]
    unlabelled = [Row(0, text) for text in texts]
    scores = _answers(compared, folder, unlabelled, recipe.device, _TEACHING * seconds)
    texts = texts[: len(scores)]
    settings: dict[str, Any] = {}
    if public:
        settings["learning_rate"] = rate_after_start(rows, finetuned)
    if pretrained:
        # Soft labels contain no label errors to memorise, so the rate can be high.
        settings["learning_rate"] = peak_rate(narrow)
        if base != finetuned:
            settings["learning_rate"] *= _RATE_OF_JOINED
        else:
            seen = min(len(pieces), len(texts))
            settings["mask_rate"] = _STUDENT_MASKED * seen / max(1, len(texts))
    pairs = zip(texts, from_scores(rows.task.name, scores).tolist(), strict=True)
    taught = [Row(0, text, tuple(output)) for text, output in pairs]
    finetune_on(
        rows,
        [*rows.first_fold[0], *taught],
        base,
        path,
        seconds=seconds - (clock_seconds() - start),
        device=recipe.device,
        seed=recipe.seed,
        settings=settings,
    )


def _texts_per_second(folder: Path) -> float:
    """Fine-tuning throughput of a network in training rows, from its log."""
    log = [row for row in read_log(folder) if row.get("tokens_per_second")]
    if not log:
        return 10.0
    batch = resolve(FinetuneRecipe, config=folder / RECIPE).data.batch_size or 16
    tokens_per_text = max(1.0, log[-1]["tokens"] / (log[-1]["step"] * batch))
    return float(np.median([row["tokens_per_second"] for row in log])) / tokens_per_text


def _answers(
    compared: Comparison, folder: Path, texts: Sequence[Row], device: str, seconds: float
) -> np.ndarray:
    """Scores (n, C) of the blend for the first n texts, as many as the time permits."""
    members = [(c, w) for c, w in compared.members if c.first]
    total = sum(w for _, w in members)
    if any(c.kind == "linear" for c, _ in members):
        members = [(c, w) for c, w in members if c.kind == "linear" or w >= _LEAST_PART * total]
    chosen = [BlendMember(c.name, c.kind, c.first, w) for c, w in members]
    blended = partial(Members(folder, chosen, Compute(device)), offsets=compared.blend.offsets)
    return score_until(blended, texts, seconds)


def taught_texts(
    rows: LabelledRows, labelled: Texts, unlabelled: Texts, count: int, *, mix: bool, seed: int
) -> tuple[list[str], list[str]]:
    """Up to ``count`` texts for distillation (docs/lab/distilled-network.md): pieces as long as the
    labelled texts of the unlabelled ones and, if there are fewer and ``mix`` is set, mixtures of
    the first fold's training texts, on which a network that the user gives is not taught."""
    lengths = [sum(map(len, row)) for row in labelled.rows]
    order = np.random.default_rng(seed).permutation(len(unlabelled))
    texts = [unlabelled.rows[i][0] for i in order]
    learnt = [text for (text,) in rows.texts(rows.folds[0][0])]
    most = min(_MIXED * len(learnt), _MOST_TEXTS) if mix else 0
    pieces = pieces_of(texts, int(np.quantile(lengths, 0.9)))[:count]
    return pieces, mixed_texts(learnt, labelled.kind, min(most, count - len(pieces)), seed)


def pieces_of(texts: Sequence[str], longest: int) -> list[str]:
    """Cut texts into pieces of up to ``longest`` characters, the length of labelled texts.

    The first pieces of all texts come first, then the second pieces, and so on.
    """
    longest = max(longest, _SHORTEST_PIECE)
    pieces_by_index: dict[int, list[str]] = {}
    for text in texts:
        start, number = 0, 0
        while start < len(text):
            end = start + longest
            # A short remainder is part of the previous piece; cut at spaces, if there are any.
            end = len(text) if end + longest / 2 >= len(text) else text.rfind(" ", start, end)
            end = end if end > start else start + longest
            if piece := text[start:end].strip():
                pieces_by_index.setdefault(number, []).append(piece)
            start, number = end, number + 1
    return [piece for own in pieces_by_index.values() for piece in own]


def mixed_texts(texts: Sequence[str], kind: str, count: int, seed: int) -> list[str]:
    """Make ``count`` texts of a kind (see ``ownbert.views.tokens.KINDS``) from short spans of
    several texts; each is as long as one of the texts. None if no text has a token.

    A teacher's predictions for its own training texts are hardly more than their labels. Mixed
    texts have the same words and neighbours, but are new to the teacher.

    Source: cf. Tang et al. 2019, "Distilling task-specific knowledge from BERT into simple neural
    networks", who sample one n-gram of a text.
    """
    split = written_tokens(kind)
    tokens = [own for own in map(split, texts) if own]
    if not tokens:
        return []
    drawn = random.Random(seed)
    between = "" if kind == "chinese" else " "
    mixed = []
    for _ in range(count):
        length, sources = len(drawn.choice(tokens)), tokens
        if length > _LONG:
            sources = drawn.sample(tokens, min(len(tokens), drawn.randint(1, _MOST_SOURCES)))
        spans: list[str] = []
        while length > 0:
            source = drawn.choice(sources)
            size = min(drawn.randint(1, _LONGEST_SPAN), len(source), length)
            start = drawn.randint(0, len(source) - size)
            spans += source[start : start + size]
            length -= size
        mixed.append(between.join(spans))
    return mixed
