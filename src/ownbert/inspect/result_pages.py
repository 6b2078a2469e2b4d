"""Results as text, page and picture: sections of sentences and tables for ``compare`` and
``drift``; error rate by coverage and the curves of a positive label for ``evaluate``.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from ownbert.exceptions import InputError
from ownbert.figures import installed_figure, save_figure
from ownbert.files.writing import write_text
from ownbert.fitting.report.charts import ranking_charts, risk_chart
from ownbert.fitting.report.report import print_section
from ownbert.fitting.report.sections import Section, in_language, ranking_section
from ownbert.fonts import CJK_FONTS, PLAIN_FONT, fitting_fonts
from ownbert.language import translated
from ownbert.pages import cleaned, page
from ownbert.tasks.metrics import Scores
from ownbert.tasks.rows import shortened
from ownbert.train.watch.metric_names import shown_name

_WIDTH, _LONGEST = 100, 400  # characters of a line and of a sentence
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)  # shares of texts answered
RANKING_CURVES = "curves.png"
_SIDE = 3.4  # inches
_LONGEST_LABEL = 40  # characters of a label


def as_text(lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Sentences and sections as plain text of at most 100 columns."""
    file = io.StringIO()
    console = Console(file=file, width=_WIDTH, no_color=True, highlight=False, force_terminal=False)
    for sentence in lead:
        console.print(Text(cleaned(sentence, _LONGEST)))
    for section in sections:
        print_section(console, section)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def write_page(path: Path, kind: str, lead: Sequence[str], sections: Sequence[Section]) -> None:
    """Write sentences, the first of which is the headline, and sections as a page."""
    headline, *sentences = lead
    text = page(
        "inspect/sections.html",
        kind=kind,
        headline=headline,
        figures=[],
        sentences=sentences,
        keys=[(section.key, section.title) for section in sections],
        sections=sections,
    )
    write_text(path, text)


def write_risk_page(path: Path, scores: Scores, *, title: str) -> None:
    """Write the metrics and the error rate by the share of texts that are answered.

    Raises:
        InputError: the task has no such curve.
    """
    if not scores.risk:
        raise InputError("{--html} is for models of one label per text or image")
    shares, errors = np.asarray(scores.risk).T
    rows = tuple((f"{x:.0%}", f"{np.interp(x, shares, errors):.2%}") for x in _SHARES)
    columns = (translated("share answered"), translated("share wrong"))
    words = translated("Error rate by share of texts answered")
    lead = translated(
        "The texts with the highest probability are answered first. Refusing the others lowers the "
        "share of wrong answers."
    )
    section = Section("risk", words, lead, columns, rows)
    found = ranking_section(scores.ranking)
    ranked = None if found is None else in_language(found)
    text = page(
        "inspect/risk.html",
        kind=translated("one label per text"),
        headline=title,
        figures=[(f"{value:.3f}", translated(shown_name(n))) for n, value in scores.values.items()],
        keys=[("risk", words), *([] if ranked is None else [("ranking", ranked.title)])],
        section=section,
        chart=risk_chart(scores.risk),
        ranked=ranked,
        ranking=[] if scores.ranking is None else ranking_charts(scores.ranking),
    )
    write_text(path, text)


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
    label = shortened(" ".join(ranking.positive.split()), _LONGEST_LABEL)
    family = fitting_fonts([label], fonts)
    title = f"Positive label: {label}, {base:.1%} of the rows"
    if family is None:
        family, title = [PLAIN_FONT], f"Positive label: {base:.1%} of the rows"
    figure.suptitle(title, fontsize=11, fontfamily=family, parse_math=False)
    save_figure(figure, path)
