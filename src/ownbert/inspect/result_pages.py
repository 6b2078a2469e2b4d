"""Metrics of ``evaluate`` as a page and a picture: error rate by coverage, and the curves of a
positive label.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ownbert.exceptions import InputError
from ownbert.figures import CJK_FONTS, PLAIN_FONT, fitting_fonts, installed_figure, save_figure
from ownbert.fitting.report.report_charts import ranking_curves, risk_chart
from ownbert.fitting.report.sections import ranking_section
from ownbert.pages import Page, Section
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import shortened
from ownbert.train.metric_names import shown_name

_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)  # shares of texts answered
RANKING_CURVES = "curves.png"
_SIDE = 3.4  # inches
_LONGEST_LABEL = 40  # characters of a label


def write_risk_page(path: Path, scores: Scores, *, title: str) -> None:
    """Write the metrics and the error rate by the share of texts that are answered.

    Raises:
        InputError: the task has no such curve.
    """
    if not scores.risk:
        raise InputError("{--html} is for models of one label per text or image")
    shares, errors = np.asarray(scores.risk).T
    rows = tuple((f"{x:.0%}", f"{np.interp(x, shares, errors):.2%}") for x in _SHARES)
    lead = (
        "The texts with the highest probability are answered first. Refusing the others lowers the "
        "share of wrong answers."
    )
    columns, drawn = ("share answered", "share wrong"), [(risk_chart(scores.risk), "")]
    words = "Error rate by share of texts answered"
    sections = [Section("risk", words, lead, columns, rows, drawn=drawn)]
    if (ranked := ranking_section(scores.ranking)) is not None:
        sections.append(ranked)
    figures = [(f"{value:.3f}", shown_name(name)) for name, value in scores.values.items()]
    Page(
        kind="one label per text",
        lead=[title],
        sections=[section.in_language() for section in sections],
        figures=figures,
    ).write(path)


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
    values, base = ranking.values, float(ranking.truth.mean())
    titles = {
        "ROC curve": f"ROC curve, area {values['roc_auc']:.3f}",
        "Precision by recall": f"Average precision {values['average_precision']:.3f}",
        "Cumulative gain": f"Lift {ranking.lift(0.1):.1f} in the first 10% of rows",
    }
    for axis, (title, names, curve, ideal) in zip(
        figure.subplots(2, 2).ravel(), ranking_curves(ranking), strict=True
    ):
        axis.plot((0, 1), ideal, ":", color="0.5")
        axis.plot(*curve, marker="o" if title == "Calibration" else "", markersize=4)
        axis.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.03), xlabel=names[0], ylabel=names[1])
        axis.set_title(titles.get(title, title), fontsize=10)
        axis.grid(alpha=0.3)
    label = shortened(" ".join(ranking.positive.split()), _LONGEST_LABEL)
    family = fitting_fonts([label], fonts)
    title = f"Positive label: {label}, {base:.1%} of the rows"
    if family is None:
        family, title = [PLAIN_FONT], f"Positive label: {base:.1%} of the rows"
    figure.suptitle(title, fontsize=11, fontfamily=family, parse_math=False)
    save_figure(figure, path)
