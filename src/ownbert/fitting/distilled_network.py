"""The network distilled from the blend (knowledge distillation, Hinton et al. 2015).

Its teachers were trained only on the first fold's training rows, so its metric on the first fold's
held-out rows is not biased by labels of these rows.
"""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import describe
from ownbert.finetuning.default_settings import peak_rate
from ownbert.fitting.comparison import Comparison
from ownbert.fitting.networks import finetune_on, rate_after_start
from ownbert.fitting.rows.fit_input import FitInput
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.inference.blend import BlendMember
from ownbert.inference.engines import Compute
from ownbert.inference.opened_blend import Members, score_until
from ownbert.run.file_names import RECIPE
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.rows import Row
from ownbert.time_limit import clock_seconds
from ownbert.train.log import read_log
from ownbert.views.blending import from_scores
from ownbert.views.tokens import written_tokens
from ownbert.views.view_features import Texts

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


def teach(
    compared: Comparison,
    inputs: FitInput,
    folder: Path,
    base: Path,
    path: Path,
    *,
    public: bool,
    seconds: float,
) -> Path:
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
    return finetune_on(
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
