"""The curves of a positive label as a picture: ROC, precision by recall, gain, calibration."""

from collections.abc import Sequence
from pathlib import Path

from ownbert.figures import installed_figure, save_figure
from ownbert.fonts import CJK_FONTS, PLAIN_FONT, fitting_fonts
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import shortened

RANKING_CURVES = "curves.png"
_SIDE = 3.4  # inches
_LONGEST = 40  # characters of a label


def draw_ranking(path: Path, scores: Scores, *, fonts: Sequence[str] = CJK_FONTS) -> None:
    """Plot the curves as a PNG file, if there is a positive label and matplotlib is installed; an
    earlier plot is removed.

    Args:
        path: PNG file to write.
        scores: metrics of labelled rows.
        fonts: names of fonts for characters that matplotlib's default font lacks.
    """
    ranking, figure_class = scores.ranking, installed_figure()
    if ranking is None or not ranking.complete or figure_class is None:
        path.unlink(missing_ok=True)
        return
    figure = figure_class(figsize=(2 * _SIDE, 2 * _SIDE), layout="constrained")
    roc, precision, gain, calibration = figure.subplots(2, 2).ravel()
    values, base = ranking.values, float(ranking.truth.mean())
    for axis, curve, ideal, names, title in (
        (roc, ranking.roc, (0, 1), ("false positive rate", "true positive rate"), "ROC curve"),
        (precision, ranking.precision_recall, (base, base), ("recall", "precision"), "Precision"),
        (gain, ranking.gain, (0, 1), ("share of rows", "positive rows found"), "Cumulative gain"),
        (
            calibration,
            ranking.calibration[:2],
            (0, 1),
            ("probability", "share of positive rows"),
            "Calibration",
        ),
    ):
        axis.plot((0, 1), ideal, ":", color="0.5")
        axis.plot(*curve, marker="o" if axis is calibration else "", markersize=4)
        axis.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.03), xlabel=names[0], ylabel=names[1])
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    roc.set_title(f"ROC curve, area {values['roc_auc']:.3f}", fontsize=10)
    precision.set_title(f"Average precision {values['average_precision']:.3f}", fontsize=10)
    gain.set_title(f"Lift {ranking.lift(0.1):.1f} in the first 10% of rows", fontsize=10)
    label = shortened(" ".join(ranking.positive.split()), _LONGEST)
    family = fitting_fonts([label], fonts)
    title = f"Positive label: {label}, {base:.1%} of the rows"
    if family is None:
        family, title = [PLAIN_FONT], f"Positive label: {base:.1%} of the rows"
    figure.suptitle(title, fontsize=11, fontfamily=family, parse_math=False)
    save_figure(figure, path)
