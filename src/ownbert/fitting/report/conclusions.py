"""Conclusions from the numbers, in plain language: the first lines of a report, the words for
metrics and differences, and what to do next."""

import math
import re
from dataclasses import replace

from ownbert.exceptions import percent
from ownbert.fitting.report.contents import LINEAR, Advice, LeaderboardRow, Report, shown_spread
from ownbert.fitting.report.statistics import DIFFERENT_KIND, LearningCurve
from ownbert.fitting.rows.labelled_rows import known_in_test
from ownbert.language.messages import Message, sentences
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
    first = Message("{name!t}: {score}", best.name, score_of(report, best.score))
    if chance is not None:
        first += Message(", {guessing!t}", report.guessing) if report.guessing else ""
        first += Message(" ({score} by chance)", decimals(chance.mean))
    return first + _network_problem(report), _against_baseline(report), _trust(report)


def _network_problem(report: Report) -> str:
    """A warning if the folder has no network or a network that is not worth using."""
    network, baseline = report.own_network, report.baseline
    if network is None:
        reasons = [reason for what, reason in report.left_out.items() if "network" in what]
        why = Message(" ({reason!t})", reasons[0]) if reasons else ""
        return Message("; the folder has no network{why}", why)
    if baseline is not None and is_far_below(report, network, baseline):
        own, other = report.comparable(network, baseline)
        return Message(
            "; the network of this folder has only {network:.3f}, far below a linear model "
            "({linear:.3f}): use ownbert predict, not the network alone",
            *(own, other),
        )
    least = max(FAR_BELOW_BEST, 2 * (network.spread or 0.0))
    if report.gain(report.winner, network) > least:
        own, other = report.comparable(network, report.winner)
        return Message(
            "; the network of this folder has only {network:.3f} where the best model has "
            "{best:.3f}: use ownbert predict, not the network alone",
            *(own, other),
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
    return Message(
        "{metric!t} {score}", metric_name(report.metric, report.positive), decimals(score)
    )


def metric_name(metric: str, positive: str | None = None) -> str:
    """The name of a metric within a sentence, with the label that it is about, if there is one."""
    name = _NAMES.get(metric, metric.replace("_", " "))
    if positive is not None and metric in ("f1", *RANKING):
        return Message("{metric!t} of {label}", name, listed([repr(positive)]))
    return name


def difference(report: Report, gain: float) -> str:
    """A gain in the metric with its sign; in words where lower values are better, because the sign
    could mean either."""
    if not report.lower or not gain:
        return decimals(gain, sign="+")
    return Message("{gain:.3f} better" if gain > 0 else "{gain:.3f} worse", abs(gain))


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
            return Message(
                "The selected model is a linear model: {name!t} scored higher ({score:.3f}), but "
                "the difference may be due to chance.",
                *(first.name, score),
            )
        return "The best model is a linear model: no other model scored higher."
    gain = Message(
        "{difference} compared with the best linear model, {name!t} ({score:.3f})",
        *(difference(report, report.gain(best, baseline)), baseline.name, baseline.score),
    )
    margin = report.margin
    if margin is None or shown_spread(margin.high - margin.low) is None:
        return gain + "."
    low, high = difference(report, margin.low), difference(report, margin.high)
    interval = "{gain}; between {low} and {high} in 90% of bootstrap samples"
    interval = Message(interval, gain, low, high)
    if margin.low > 0:
        return interval + ", so the difference is unlikely to be due to chance."
    if margin.high < 0:
        count = len(report.leaderboard)
        return interval + Message(", but the best of {count} models is partly lucky.", count)
    return interval + ", so the difference may be due to chance."


def _trust(report: Report) -> str:
    best, parts = report.winner, []
    rows = Message(" on {rows:,} held-out rows", report.held_out) if report.held_out else ""
    far_below = test_score_is_far_below(report)
    if (spread := shown_spread(best.spread)) is not None and not far_below:
        parts.append(
            Message("The score{rows} is accurate to about ±{error:.3f}.", rows, 2 * spread)
        )
    elif rows:
        parts.append(Message("The score was measured{rows}.", rows))
    if best.test_score is not None:
        line = "On the test set, which was not used for selection, it is {score:.3f}."
        if far_below:
            line = (
                "On the test set, which was not used for selection, it is only {score:.3f}: expect "
                "this on new texts."
            )
        parts.append(Message(line, best.test_score))
        known = (report.learnt_from_test, report.known_groups_in_test, report.test_rows)
        parts += (sentence + "." for sentence in known_in_test(*known))
    elif (count := len(report.leaderboard)) > 1 and report.gain(best, report.ranked[0]) >= 0:
        parts.append(
            Message(
                "It was selected as the best of {count} on these rows, so expect slightly lower "
                "scores on new texts.",
                count,
            )
        )
    return sentences(parts)


def listed(names: list[str]) -> str:
    names = [name if len(name) <= 40 else f"{name[:39]}…" for name in names]
    if len(names) > NAMED:
        return Message("{names} and {count} more", names[:NAMED], len(names) - NAMED)
    if len(names) > 1:
        return Message("{names} and {last}", names[:-1], names[-1])
    return names[0]


# Thresholds below which a difference is not mentioned, or a number supports no conclusion.
LEAST_GAIN = 0.005  # in the score
FEW_ROWS = 20  # training rows of a class
WEAK_F1 = 0.5
MANY_ERRORS = 0.005  # share of the held-out rows
HARD_TASK = 0.1  # share of held-out rows contradicted: the model is at its limit, not the labels
MANY_UNKNOWN = 0.05  # share of the labelled texts' tokens
# Reasons for a network that was not fitted: the limit of time; other reasons are failures.
_NO_TIME = re.compile(r"\bno(t enough)? time\b")
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "memoryerror")
_ORDER = {"do": 0, "note": 1, "fine": 2}


def can_rise(report: Report) -> bool:
    """Whether the score is far enough below its upper bound for a gain to be worth mentioning."""
    highest = 0.0 if report.lower else 1.0
    return highest - report.worth(report.winner) >= LEAST_GAIN


def share_contradicted(report: Report) -> float:
    """The share of held-out rows that are likely label errors; 0 if unknown."""
    rows = report.held_out or len(report.texts)
    return len(report.label_errors) / rows if rows else 0.0


def give_advice(report: Report) -> tuple[Advice, ...]:
    """All advice that the numbers support, the most important first."""
    worse = _worse_on_test(report)
    if report.guessing:  # other advice would take the models seriously
        what = "number" if report.task == "regress" else "label"
        sentence = Message(
            "Check that each {what!t} belongs to its text and can be told from it, or label "
            "more texts: the predictions are {guessing!t}.",
            *(what, report.guessing),
        )
        chance = decimals(report.chance[report.metric].mean)
        figure = Message(
            "{score}; by chance {chance}", score_of(report, report.winner.score), chance
        )
        guessing = Advice("do", sentence, figure)
        return (guessing, *worse, *_no_network(report), *_drift(report))
    advice = [
        *worse,
        *_no_network(report),
        *_linear_is_enough(report),
        *_extrapolated(report, report.learning_curve),
        *_label_errors(report),
        *_few_rows(report),
        *_weak_classes(report),
        *_extrapolated(report, report.minutes_curve),
        *_calibration(report),
        *_drift(report),
    ]
    if worse:  # the held-out rows are unlike new ones, so the test set contradicts good news
        only = "This applies to the held-out rows only, not to the test set."
        advice = [
            replace(one, kind="note", sentence=sentences((one.sentence, only)))
            if one.kind == "fine"
            else one
            for one in advice
        ]
    return tuple(sorted(advice, key=lambda one: _ORDER[one.kind]))


def _worse_on_test(report: Report) -> list[Advice]:
    best = report.winner
    if best.test_score is None or not test_score_is_far_below(report):
        return []
    reasons = "test rows of another kind"
    if not report.settings.get("time_column"):
        reasons = f"changes over time (use --time-column), or {reasons}"
    if not report.settings.get("group"):
        more = "," if "," in reasons else ", or"
        reasons = f"several rows of one person or group (use --group){more} {reasons}"
    sentence = Message(
        "Expect the score of the test set on new texts: the score of the held-out rows is much "
        "better. Likely reasons: {reasons}.",
        reasons,
    )
    score = score_of(report, best.score)
    figure = Message("{score}; test set {test_score:.3f}", score, best.test_score)
    return [Advice("do", sentence, figure)]


def _no_network(report: Report) -> list[Advice]:
    network, baseline = report.own_network, report.baseline
    if network is not None and (baseline is None or not is_far_below(report, network, baseline)):
        return []
    if network is None:
        reasons = (reason for what, reason in report.left_out.items() if "network" in what)
        failure = next((reason for reason in reasons if not _NO_TIME.search(reason)), None)
        minutes = report.settings.get("minutes")
        figure = (
            Message("the limit was {minutes:g} min", minutes)
            if isinstance(minutes, int | float)
            else "see above"
        )
        if failure is None:
            sentence = "Use more --minutes: only linear models were fitted, no network was trained."
            return [Advice("do", sentence, figure)]
        sentence = (
            "Mend the cause of the failure and fit again: no network was trained, and more "
            "--minutes do not help."
        )
        if any(sign in failure.lower() for sign in _OUT_OF_MEMORY):
            size, model = (report.settings.get(name) for name in ("size", "model"))
            smaller = "--model" if model and not size else "--size"
            smaller = Message("{option} (now {size})", smaller, size) if size else smaller
            sentence = Message(
                "Use a smaller {smaller} or --device cpu, or end other programs that use "
                "the memory: no network was trained, because the memory was too small.",
                smaller,
            )
        return [Advice("do", sentence, failure)]
    assert baseline is not None
    own, other = report.comparable(network, baseline)
    sentence = Message(
        "Use ownbert predict, which predicts with {name!t}, and not the network of the "
        "folder alone, which scores far below the linear models. More --minutes or more "
        "unlabelled texts may improve it; for some data, words and codes alone decide.",
        report.winner.name,
    )
    figure = Message("{score}; {name!t} {other:.3f}", score_of(report, own), baseline.name, other)
    return [Advice("do", sentence, figure)]


def _linear_is_enough(report: Report) -> list[Advice]:
    best, baseline, margin = report.winner, report.baseline, report.margin
    if baseline is None or best.kind == LINEAR:
        if baseline is not None and report.network and len(report.leaderboard) > 1:
            sentence = Message(
                "Use the linear model {name!t}: no slower model is better here.", baseline.name
            )
            if report.gain(report.ranked[0], baseline) > 0:
                sentence = Message(
                    "Use the linear model {name!t}: no slower model is better here by more "
                    "than chance.",
                    baseline.name,
                )
            return [Advice("fine", sentence, score_of(report, baseline.score))]
        return []
    gain = report.gain(best, baseline)
    noise = margin.low <= 0 if margin else gain <= 2 * (best.spread or 0.0)
    if not noise and gain >= LEAST_GAIN:
        return []
    figure = difference(report, gain)
    if margin:
        low, high = difference(report, margin.low), difference(report, margin.high)
        figure += Message(", {low} to {high}", low, high)
    why = Message("{name!t} is not better", best.name)
    if gain > 0:
        reason = "may be due to chance" if noise else "is too small to matter in most cases"
        why = Message("the gain of {name!t} over it {reason!t}", best.name, reason)
    sentence = Message("The linear model {name!t} may be good enough: {why}", baseline.name, why)
    if best.texts_per_second and baseline.texts_per_second:
        times = baseline.texts_per_second / best.texts_per_second
        if times >= 2:
            sentence += Message(", and it is {times:,.0f} times as fast", times)
    return [Advice("do", sentence + ".", figure)]


# By unit of the curve: how its positions are shown, and sentences for a gain that is worth
# mentioning, for one that is not, and for one that is not known.
_CURVES = {
    "rows": (
        "{low} to {high} at {rows:,.0f} rows",
        "Label more texts: with {times!t} as many rows, a linear model on words would gain about "
        "{gain}, and the blend less.",
        "More labels of this kind would hardly improve the score.",
        "The gain from more labels cannot be estimated.",
    ),
    "minutes": (
        "{low} to {high} at {minutes:.3g} minutes",
        "Use more --minutes: with {times!t} the pretraining time, a linear model on the network "
        "would gain about {gain}, and the blend less.",
        "Longer pretraining would hardly improve the score.",
        "The gain from longer pretraining cannot be estimated.",
    ),
}


def _extrapolated(report: Report, curve: LearningCurve | None) -> list[Advice]:
    if curve is None:
        return []
    figure, worth, not_worth, unknown = _CURVES[curve.unit]
    if not can_rise(report):
        return [Advice("fine", not_worth, score_of(report, report.winner.score))]
    if not curve.known or not curve.further:
        return [Advice("note", unknown, curve.reason or "nothing was extrapolated")]
    double = curve.further[0]
    low, high = difference(report, double.gain_low), difference(report, double.gain_high)
    interval = Message(figure, low, high, double.at)
    if double.gain >= LEAST_GAIN and double.gain_low > 0:
        times = double.at / curve.start
        words = "twice" if times == 2 else Message("{times:.2g} times", times)
        return [Advice("do", Message(worth, words, difference(report, double.gain)), interval)]
    return [Advice("fine", not_worth, interval)]


def _label_errors(report: Report) -> list[Advice]:
    if not report.label_errors:
        return []
    count, share = len(report.label_errors), share_contradicted(report)
    figure = (
        Message("{count:,} of the held-out rows ({share})", count, percent(share))
        if share
        else Message("{count:,} rows", count)
    )
    place = report.place_of(report.label_errors[0].row)
    sentence = Message("Check the likely label errors, starting with {place}", place)
    if share > HARD_TASK:
        sentence += ": there are so many that most are probably hard texts, not mistakes."
        return [Advice("note", sentence, figure)]
    sentence += ": corrected labels improve training and make the scores more reliable."
    return [Advice("do" if share >= MANY_ERRORS or not share else "note", sentence, figure)]


def _few_rows(report: Report) -> list[Advice]:
    counts = zip(report.train_counts, report.labels, strict=False)
    few = sorted((n, label) for n, label in counts if n < FEW_ROWS)
    if not few or report.task == "regress":
        return []
    names = listed([label for _, label in few])
    figure = ", ".join(f"{n:,}" for n, _ in few[:NAMED]) + (", ..." if len(few) > NAMED else "")
    sentence = (
        "Label more texts of {names}, which has fewer than {few} rows."
        if len(few) == 1
        else "Label more texts of {names}, which have fewer than {few} rows."
    )
    return [Advice("do", Message(sentence, names, FEW_ROWS), Message("{figure} rows", figure))]


def _weak_classes(report: Report) -> list[Advice]:
    if report.settings.get("threshold") is not None:  # chosen by the user, not for F1
        return []
    counts = dict(zip(report.labels, report.train_counts, strict=False))
    weak = sorted(
        (score.f1, score.label)
        for score in (report.scores.labels if report.scores else ())
        if score.f1 < WEAK_F1 and score.support and counts.get(score.label, FEW_ROWS) >= FEW_ROWS
    )
    if not weak:
        return []
    figure = "F1 " + ", ".join(f"{f1:.2f}" for f1, _ in weak[:NAMED])
    sentence = Message(
        "Despite enough training rows, the predictions of {names} are poor: check the confusions, "
        "and whether labels overlap.",
        listed([label for _, label in weak]),
    )
    return [Advice("note", sentence, figure)]


def _calibration(report: Report) -> list[Advice]:
    calibration = report.calibration
    if calibration is None:
        return []
    error, after = calibration.error, calibration.error_after
    figure = Message(
        "error {error:.3f}; by chance up to {by_chance:.3f}", error, calibration.by_chance
    )
    if calibration.calibrated:
        return [Advice("fine", "Probabilities are well calibrated.", figure)]
    kind = "overconfident" if calibration.temperature > 1 else "underconfident"
    if calibration.helps and error > calibration.by_chance:
        sentence = Message(
            "The model is {kind}: divide its log-probabilities by the temperature "
            "{temperature:.2f} before relying on its probabilities.",
            kind,
            calibration.temperature,
        )
        return [
            Advice(
                "do",
                sentence,
                Message("error {error:.3f}, with temperature {after:.3f}", error, after),
            )
        ]
    pairs = zip(report.labels, calibration.classes, strict=False)
    if wrong := [(label, own) for label, own in pairs if own.shifted and not own.calibrated]:
        label, own = max(wrong, key=lambda pair: pair[1].error - pair[1].by_chance)
        sentence = Message(
            "The probabilities of {listed} are not well calibrated: their mean is "
            "{mean:.1%}, and {rate:.1%} of the rows have this label.",
            listed([label]),
            own.mean,
            own.rate,
        )
        chance = Message(
            "error {error:.3f}; by chance up to {by_chance:.3f}", own.error, own.by_chance
        )
        return [Advice("note", sentence, chance)]
    sentence = "Probabilities are only roughly calibrated, and a temperature does not help."
    return [Advice("note", sentence, figure)]


def _drift(report: Report) -> list[Advice]:
    drift, advice = report.drift, []
    if drift is None:
        return []
    if drift.separability is not None and drift.separability >= DIFFERENT_KIND:
        sentence = (
            "The unlabelled texts differ from the labelled ones: pretraining on texts similar to "
            "the labelled ones would help more."
        )
        advice.append(
            Advice(
                "do",
                sentence,
                Message("separability {separability:.2f}, .5 is none", drift.separability),
            )
        )
    if drift.unknown >= MANY_UNKNOWN:
        sentence = "Many tokens of the labelled texts occur in no unlabelled text."
        advice.append(
            Advice("note", sentence, Message("{unknown} of the tokens", percent(drift.unknown)))
        )
    if not advice and drift.separability is not None:
        return [
            Advice(
                "fine",
                drift.summary,
                Message("separability {separability:.2f}, .5 is none", drift.separability),
            )
        ]
    return advice
