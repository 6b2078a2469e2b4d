"""A page about selective prediction: error rate by coverage."""

from pathlib import Path

import numpy as np

from ownbert.exceptions import InputError
from ownbert.files.writing import write_text
from ownbert.fitting.report.charts import ranking_charts, risk_chart
from ownbert.fitting.report.sections import Section, in_language, ranking_section
from ownbert.language import translated
from ownbert.pages import page
from ownbert.tasks.metrics import Scores
from ownbert.train.watch.metric_names import shown_name

_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)  # shares of texts answered


def write_risk_page(path: Path, scores: Scores, *, title: str) -> None:
    """Write the metrics and the error rate by the share of texts that are answered.

    Raises:
        InputError: the task has no such curve.
    """
    if not scores.risk:
        raise InputError("--html is for models of one label per text or image")
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
