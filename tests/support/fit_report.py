"""A report with every section, made from synthetic rows by the functions that it is a report of."""

from dataclasses import replace

import numpy as np
from scipy.special import log_softmax

from ownbert.fitting.report.conclusions import give_advice
from ownbert.fitting.report.contents import (
    LeaderboardRow,
    Report,
    bootstrap_margin,
    hardest_rows,
    typical_rows,
)
from ownbert.fitting.report.statistics import calibrate, compare_texts, fit_learning_curve
from ownbert.tasks.metrics import find_label_errors, score_labels

HOSTILE = (
    "</script><script>document.title = 'broken'</script>",
    "<img src=x onerror=\"document.title = 'broken'\"> & {braces} {0}",
    "\u202eright to left\u202c and \x1b[31mred\x00",
    "שלום עולם, مرحبا بالعالم",
    "👩‍👩‍👧‍👦🏳️‍🌈 emoji " * 9,
    "half of a pair: \ud83d",
    "a long document " * 700,
    "w" * 10_000,
)


def calibrated_rows(
    rows: int, classes: int, strength: float = 2.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities (N, C) that are calibrated, and targets (N) drawn from them."""
    rng = np.random.default_rng(seed)
    scores = log_softmax(strength * rng.normal(size=(rows, classes)), axis=1)
    return scores, (np.exp(scores).cumsum(1) > rng.random((rows, 1))).argmax(1)


def made_report(classes: int = 8, rows: int = 400) -> Report:
    """A report of a classification; some of its texts and labels are hostile."""
    rng = np.random.default_rng(1)
    scores, targets = calibrated_rows(rows, classes, 6.0)
    baseline = (0.9 * scores + rng.normal(size=scores.shape)).argmax(1)
    scores = log_softmax(1.8 * scores, axis=1)  # too confident
    probabilities, answers = np.exp(scores), scores.argmax(1)
    names = ["</script>", "שלום", "中文标签", "a label with a rather long name"]
    labels = tuple((names + [f"topic {i}" for i in range(4, classes)])[:classes])

    def accuracy(truth: np.ndarray, answers: np.ndarray) -> float:
        return float((truth == answers).mean())

    def gain(chosen: np.ndarray) -> float:
        pairs = ((targets[chosen], each[chosen]) for each in (answers, baseline))
        own, other = (accuracy(*pair) for pair in pairs)
        return own - other

    best, linear = accuracy(targets, answers), accuracy(targets, baseline)
    measured = [
        (n, *(best + 0.05 - 0.6 * n**-0.35 + rng.normal(0, 0.004, 3)))
        for n in (200, 400, 800, 1600)
    ]
    checkpoints = [(m, best - 0.4 * m**-1.6 + rng.normal(0, 0.003)) for m in range(1, 15)]
    report = Report(
        task="classify",
        metric="accuracy",
        network="distilled",
        leaderboard=(
            _row("TF-IDF words + characters", "linear", linear, linear - 0.01, 4.2, 0.3),
            _row("LSA 300", "linear", linear - 0.03, None, 11.0, 0.0),
            _row("network 4x256", "network", best - 0.02, best - 0.03, 840.0, 0.7),
            _row("blend", "blend", best, best - 0.012, 861.0, None),
            _row("distilled", "distilled", best - 0.008, None, 300.0, None),
        ),
        best="blend",
        margin=bootstrap_margin(gain, np.arange(rows), draws=200),
        held_out=rows,
        scores=score_labels(targets, answers, labels),
        labels=labels,
        train_counts=tuple(int(n) * 4 for n in np.bincount(targets, minlength=classes)),
        learning_curve=fit_learning_curve(measured),
        minutes_curve=fit_learning_curve(checkpoints, unit="minutes"),
        calibration=calibrate(scores, targets),
        label_errors=tuple(find_label_errors(probabilities, targets)),
        hardest=tuple(hardest_rows(probabilities, targets, probabilities.argmax(1))),
        typical=tuple(typical_rows(probabilities, targets, probabilities.argmax(1))),
        texts=[HOSTILE[i % len(HOSTILE)] if i % 3 else f"Ordinary text {i}." for i in range(rows)],
        places=[f"train.csv, line {i + 2}" for i in range(rows)],
        drift=compare_texts(_texts(rng, 200, 30), _texts(rng, 400, 60)),
        data={"training rows": 4 * rows, "labels": classes, "file": "train.csv"},
        settings={"minutes": 20, "seed": 0, "size": "small"},
    )
    return replace(report, advice=give_advice(report))


def _row(
    name: str, kind: str, score: float, test: float | None, seconds: float, weight: float | None
) -> LeaderboardRow:
    size, speed = int(23e3 * seconds), 9e4 / seconds
    return LeaderboardRow(name, kind, score, 0.016, test, seconds, size, speed, weight)


def _texts(rng: np.random.Generator, number: int, length: int) -> list[list[str]]:
    """Texts of two kinds of words; longer texts have more of one of them."""
    words = np.asarray([f"word{i}" for i in range(300)])
    rates = np.random.default_rng(0).dirichlet(np.full(300, 0.3), 2)
    rates = rates[0] * length / 100 + rates[1] * (1 - length / 100)
    return [words[rng.choice(300, rng.poisson(length), p=rates)].tolist() for _ in range(number)]
