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
from ownbert.fitting.comparison import Comparison
from ownbert.fitting.networks import finetune_on, taught_rows, tokens_per_second, tokens_per_text
from ownbert.fitting.teaching.taught_texts import taught_texts
from ownbert.inference.blend import BlendMember
from ownbert.inference.compute import Compute
from ownbert.inference.opened_blend import Members, score_until
from ownbert.tasks.rows import Row
from ownbert.views.blending import from_scores
from ownbert.views.view_features import Texts

# Passes through the texts that a student needs at least, and a third for the teacher's answers.
_STUDENT_PASSES = 2.4
# The share of the time in which the teacher answers, at most.
_TEACHING = 0.35
# Networks with a smaller part of the blend do not teach: they take most of that time.
_LEAST_PART = 0.1
# Share of the tokens that it does not see of texts without labels, where it was pretrained on such
# texts: a student that has it harder than its teacher becomes better than it (Xie et al. 2020). A
# sentence model lost by it, and so did mixed texts (docs/lab/distilled-network.md).
_STUDENT_MASKED = 0.3
# What a network with built-in linear models learns with, as a share of the rate for others. With
# larger steps it forgets them, and hidden tokens have no scores (docs/lab/distilled-network.md).
_RATE_OF_JOINED = 0.3


def teach(
    compared: Comparison,
    folder: Path,
    base: Path,
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
        compared: the candidates, a fine-tuned network among them.
        folder: of the candidates.
        base: that network, or a wider copy of it with built-in linear models.
        path: of the new network.
        labelled, unlabelled: the texts of the rows, and others.
        given: whether the network was not pretrained on these texts: it sees none but whole ones.
        seconds: for all of it.
        device, seed: of the training.

    Raises:
        OutOfTime: the time limit has passed.
    """
    began, rows = time.monotonic(), compared.rows
    finetuned = folder / next(c for c in compared.candidates if c.name == "network").first[0]
    wide, narrow = (describe(own).config.hidden_size for own in (base, finetuned))
    tokens = seconds * tokens_per_second(finetuned) * (narrow / wide) / _STUDENT_PASSES
    count = max(1, int(tokens / tokens_per_text(finetuned)) - len(rows.learnt))
    pieces, mixed = taught_texts(rows, labelled, unlabelled, count, given=given, seed=seed)
    texts = [(text,) for text in (*pieces, *mixed)]
    answered = [Row(0, own) for own in texts]
    scores = _answers(compared, folder, answered, device, _TEACHING * seconds)
    texts = texts[: len(scores)]
    settings: dict[str, Any] = {}
    if not given:
        # What the teacher says holds no mistakes to be learnt by heart.
        settings["learning_rate"] = peak_rate(narrow)
        if base != finetuned:
            settings["learning_rate"] *= _RATE_OF_JOINED
        else:
            seen = min(len(pieces), len(texts))
            settings["mask_rate"] = _STUDENT_MASKED * seen / max(1, len(texts))
    return finetune_on(
        rows,
        taught_rows(rows, texts, from_scores(rows.task.name, scores)),
        base,
        path,
        seconds=seconds - (time.monotonic() - began),
        device=device,
        seed=seed,
        settings=settings,
    )


def _answers(
    compared: Comparison, folder: Path, texts: Sequence[Row], device: str, seconds: float
) -> np.ndarray:
    """The scores (n, C) that the blend gives the first n texts, as many as there is time for."""
    members = [(c, w) for c, w in compared.members if c.first]
    total = sum(w for _, w in members)
    if any(c.kind == "linear" for c, _ in members):
        members = [(c, w) for c, w in members if c.kind == "linear" or w >= _LEAST_PART * total]
    chosen = [BlendMember(c.name, c.kind, c.first, w) for c, w in members]
    return score_until(Members(folder, chosen, Compute(device)), texts, seconds)
