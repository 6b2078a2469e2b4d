"""The first lines of a report, and the words for metrics and differences."""

import math

from ownbert.fitting.report.contents import LeaderboardRow, Report, shown_spread
from ownbert.fitting.rows.labelled_rows import known_in_test
from ownbert.tasks.metrics import RANKING
from ownbert.train.metric_names import decimals

NAMED = 3  # classes per sentence
FAR_BELOW = 0.02  # score of a network below the best linear model
FAR_BELOW_BEST = 0.05  # score of a network below the selected model
# Metrics of the selected model that are shown beside the selection metric.
_SHOWN_METRICS = (
    *("accuracy", "macro_f1", "micro_f1", "weighted_f1", "subset_accuracy", "log_loss"),
    *("f1", "roc_auc", "average_precision"),
    *("spearman", "pearson", "mae", "r2"),
)
# Names of metrics within a sentence, where they are not their identifiers.
_NAMES = {
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "weighted_f1": "weighted F1",
    "mcc": "Matthews correlation",
    "roc_auc": "ROC AUC",
    "f1": "F1",
    "mae": "mean absolute error",
}


def headline(report: Report) -> tuple[str, str, str]:
    """Three sentences: the selected model with its score and any problem of the folder's network;
    the comparison with the baseline; how reliable the score is."""
    best, chance = report.winner, report.chance.get(report.metric)
    first = f"{best.name}: {score_of(report, best.score)}"
    if chance is not None:
        by_chance = f"{decimals(chance.mean)} by chance"
        first += f", {report.guessing} ({by_chance})" if report.guessing else f" ({by_chance})"
    return first + _network_problem(report), _against_baseline(report), _trust(report)


def _network_problem(report: Report) -> str:
    """A warning if the folder has no network or a network that is not worth using."""
    network, baseline = report.own_network, report.baseline
    if network is None:
        reasons = [reason for what, reason in report.left_out.items() if "network" in what]
        why = f" ({reasons[0]})" if reasons else ""
        return f"; the folder has no network{why}"
    if baseline is not None and is_far_below(report, network, baseline):
        own, other = report.comparable(network, baseline)
        return (
            f"; the network of this folder has only {own:.3f}, far "
            f"below a linear model ({other:.3f}): use ownbert predict, not the network alone"
        )
    least = max(FAR_BELOW_BEST, 2 * (network.spread or 0.0))
    if report.gain(report.winner, network) > least:
        own, other = report.comparable(network, report.winner)
        return (
            f"; the network of this folder has only {own:.3f} where the best model has "
            f"{other:.3f}: use ownbert predict, not the network alone"
        )
    return ""


def is_far_below(report: Report, network: LeaderboardRow, baseline: LeaderboardRow) -> bool:
    """Whether a network is worse than the best linear model by more than chance."""
    return report.gain(baseline, network) > max(FAR_BELOW, 2 * (network.spread or 0.0))


def other_metrics(report: Report) -> list[tuple[str, str, str]]:
    """Names, values and values by chance of the selected model's metrics other than the selection
    metric; a value that is not known is empty."""
    values = {} if report.scores is None else report.scores.values
    return [
        (
            metric_name(name, report.positive),
            decimals(values[name]),
            decimals(report.chance[name].mean) if name in report.chance else "",
        )
        for name in _SHOWN_METRICS
        if name in values and name != report.metric
    ]


def score_of(report: Report, score: float) -> str:
    """A score with the name of the metric."""
    return f"{metric_name(report.metric, report.positive)} {decimals(score)}"


def metric_name(metric: str, positive: str | None = None) -> str:
    """The name of a metric within a sentence, with the label that it is about, if there is one."""
    name = _NAMES.get(metric, metric.replace("_", " "))
    if positive is not None and metric in ("f1", *RANKING):
        return f"{name} of {listed([repr(positive)])}"
    return name


def difference(report: Report, gain: float) -> str:
    """A gain in the metric with its sign; in words where lower values are better, because the sign
    could mean either."""
    if not report.lower or not gain:
        return decimals(gain, sign="+")
    return f"{abs(gain):.3f} {'better' if gain > 0 else 'worse'}"


def test_score_is_far_below(report: Report) -> bool:
    """Whether the selected model is worse on the test set than on the held-out rows by more than
    twice the standard error of the difference."""
    best, rows = report.winner, report.test_rows
    if best.test_score is None or not rows:
        return False
    lost = best.test_score - best.score if report.lower else best.score - best.test_score
    # Perfect scores have no spread; that of a share of the test rows is a lower bound.
    spread = best.spread or 0.0
    of_test = spread * math.sqrt((report.held_out or rows) / rows)
    if not report.lower and 0 <= best.test_score <= 1:
        of_test = max(of_test, math.sqrt(best.test_score * (1 - best.test_score) / rows))
    least = FAR_BELOW * (abs(best.score) if report.lower else 1.0)
    return lost > max(least, 2 * math.hypot(spread, of_test))


def _against_baseline(report: Report) -> str:
    best, baseline = report.winner, report.baseline
    if baseline is None:
        return "No linear model was compared, so there is no baseline."
    if best.name == baseline.name:
        if len(report.leaderboard) == 1:
            return "Only one model was fitted, a linear one."
        first = max(report.leaderboard, key=lambda row: report.gain(row, best))
        if report.gain(first, best) > 0:
            score, _ = report.comparable(first, best)
            return (
                f"The selected model is a linear model: {first.name} scored higher "
                f"({score:.3f}), but the difference may be due to chance."
            )
        return "The best model is a linear model: no other model scored higher."
    gain = f"{difference(report, report.gain(best, baseline))} compared with the best linear model"
    gain += f", {baseline.name} ({baseline.score:.3f})"
    margin = report.margin
    if margin is None or shown_spread(margin.high - margin.low) is None:
        return f"{gain}."
    low, high = difference(report, margin.low), difference(report, margin.high)
    interval = f"between {low} and {high} in 90% of bootstrap samples"
    if margin.low > 0:
        return f"{gain}; {interval}, so the difference is unlikely to be due to chance."
    if margin.high < 0:
        count = len(report.leaderboard)
        return f"{gain}; {interval}, but the best of {count} models is partly lucky."
    return f"{gain}; {interval}, so the difference may be due to chance."


def _trust(report: Report) -> str:
    best, parts = report.winner, []
    rows = f" on {report.held_out:,} held-out rows" if report.held_out else ""
    far_below = test_score_is_far_below(report)
    if (spread := shown_spread(best.spread)) is not None and not far_below:
        parts.append(f"The score{rows} is accurate to about ±{2 * spread:.3f}.")
    elif rows:
        parts.append(f"The score was measured{rows}.")
    if best.test_score is not None:
        start = "On the test set, which was not used for selection, it is"
        if far_below:
            parts.append(f"{start} only {best.test_score:.3f}: expect this on new texts.")
        else:
            parts.append(f"{start} {best.test_score:.3f}.")
        known = (report.learnt_from_test, report.known_groups_in_test, report.test_rows)
        parts += (f"{sentence}." for sentence in known_in_test(*known))
    elif (count := len(report.leaderboard)) > 1 and report.gain(best, report.ranked[0]) >= 0:
        parts.append(
            f"It was selected as the best of {count} on these rows, so expect slightly lower "
            "scores on new texts."
        )
    return " ".join(parts)


def listed(names: list[str]) -> str:
    names = [name if len(name) <= 40 else f"{name[:39]}…" for name in names]
    if len(names) > NAMED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
