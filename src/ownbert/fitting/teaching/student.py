"""The network that the blend teaches (knowledge distillation, Hinton et al. 2015).

Its teachers have learnt from the rows that the first fold learns from, and from no others, so that
its score on the rows that are held out from these is that of rows that nobody has told it of.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import describe
from ownbert.finetuning.default_settings import peak_rate
from ownbert.fitting.candidates import Comparison
from ownbert.fitting.labelled_rows import LabelledRows
from ownbert.fitting.networks import (
    finetune_on,
    taught_rows,
    tokens_per_second,
    tokens_per_text,
)
from ownbert.fitting.teaching.taught_texts import mixed_texts, pieces_of
from ownbert.inference.blend import BlendMember
from ownbert.inference.compute import Compute
from ownbert.inference.opened_blend import Members
from ownbert.tasks.rows import Row
from ownbert.views.blending import from_scores
from ownbert.views.view_features import Texts

# Passes through the texts that a student needs at least, and a third for the teacher's answers.
_STUDENT_PASSES = 2.4
# The share of the time in which the teacher answers, at most, and texts that it answers together.
_TEACHING, _TOGETHER = 0.35, 256
# Networks with a smaller part of the blend do not teach: they take most of that time.
_LEAST_PART = 0.1
# Share of the tokens that it does not see of texts without labels, where it was pretrained on such
# texts: a student that has it harder than its teacher becomes better than it (Xie et al. 2020). A
# sentence model lost by it, and so did mixed texts (docs/lab/distilled-network.md).
_STUDENT_MASKED = 0.3
# Mixed texts for each labelled one, and texts, at most.
_MIXED, _MOST_TEXTS = 8, 100_000


def teach(
    compared: Comparison,
    folder: Path,
    path: Path,
    labelled: Texts,
    unlabelled: Texts,
    *,
    given: bool,
    seconds: float,
    device: str,
    seed: int,
) -> Path:
    """Fine-tune a network on what the blend says of texts, beside the labelled rows.

    Args:
        compared: the candidates, a fine-tuned network among them, from which it starts.
        folder: of the candidates.
        path: of the new network.
        labelled, unlabelled: the texts of the rows, and others.
        given: whether the network was not pretrained on these texts: it sees none but whole ones.
        seconds: for all of it.
        device, seed: of the training.

    Raises:
        OutOfTime: the time limit has passed.
    """
    began, rows = time.monotonic(), compared.rows
    first = folder / next(c for c in compared.candidates if c.name == "network").first[0]
    tokens = seconds * tokens_per_second(first) / _STUDENT_PASSES
    count = max(1, int(tokens / tokens_per_text(first)) - len(rows.learnt))
    pieces, mixed = taught_texts(rows, labelled, unlabelled, count, given=given, seed=seed)
    texts = [(text,) for text in (*pieces, *mixed)]
    scores = _answers(compared, folder, texts, device, _TEACHING * seconds)
    texts = texts[: len(scores)]
    settings: dict[str, Any] = {}
    if not given:
        seen = min(len(pieces), len(texts))
        settings["mask_rate"] = _STUDENT_MASKED * seen / max(1, len(texts))
        # What the teacher says holds no mistakes to be learnt by heart.
        settings["learning_rate"] = peak_rate(describe(first).config.hidden_size)
    return finetune_on(
        rows,
        taught_rows(rows, texts, from_scores(rows.task.name, scores)),
        first,
        path,
        seconds=seconds - (time.monotonic() - began),
        device=device,
        seed=seed,
        settings=settings,
    )


def taught_texts(
    rows: LabelledRows,
    labelled: Texts,
    unlabelled: Texts,
    count: int,
    *,
    given: bool,
    seed: int,
) -> tuple[list[str], list[str]]:
    """``count`` texts to be taught on: pieces of unlabelled ones and, where these run short and the
    network was not given, mixed labelled ones (docs/lab/distilled-network.md), none of them of the
    first fold's held-out rows."""
    lengths = [sum(map(len, row)) for row in labelled.rows]
    order = np.random.default_rng(seed).permutation(len(unlabelled))
    texts = [unlabelled.rows[i][0] for i in order]
    learnt = [text for (text,) in rows.texts(rows.folds[0][0])]
    most = 0 if given else min(_MIXED * len(learnt), _MOST_TEXTS)
    pieces = pieces_of(texts, int(np.quantile(lengths, 0.9)))[:count]
    return pieces, mixed_texts(learnt, labelled.kind, min(most, count - len(pieces)), seed)


def _answers(
    compared: Comparison,
    folder: Path,
    texts: Sequence[tuple[str, ...]],
    device: str,
    seconds: float,
) -> np.ndarray:
    """The scores (n, C) that the blend gives the first n texts, as many as there is time for."""
    began, found = time.monotonic(), []
    members = [(c, w) for c, w in compared.members if c.first]
    total = sum(w for _, w in members)
    if any(c.kind == "linear" for c, _ in members):
        members = [(c, w) for c, w in members if c.kind == "linear" or w >= _LEAST_PART * total]
    chosen = [BlendMember(c.name, c.kind, c.first, w) for c, w in members]
    scorer = Members(folder, chosen, Compute(device))
    for start in range(0, len(texts), _TOGETHER):
        some = [Row(0, own) for own in texts[start : start + _TOGETHER]]
        found.append(scorer(some))
        if time.monotonic() - began > seconds:
            break
    return np.concatenate(found)
