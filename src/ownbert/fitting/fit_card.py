"""The model card of ``fit``: compared models and how to use the folder."""

from pathlib import Path

from ownbert.checkpoint import CONFIG, describe
from ownbert.fitting.report.contents import Report
from ownbert.fitting.report.headline import headline, other_metrics
from ownbert.fitting.report.sections import plain_value, sections
from ownbert.inference.blend import blend_of
from ownbert.language import translated
from ownbert.run.model_card import MAX_ROWS, in_words, save_card, table
from ownbert.tasks.task import KEY, task_class
from ownbert.tasks.task_kinds import task_kinds


def write_fit_card(folder: Path, report: Report) -> str | None:
    """Write README.md with the leaderboard, unless the user has written one.

    Returns:
        A warning, if any.
    """
    task, network = task_class(report.task), (folder / CONFIG).exists()
    blend, decides = blend_of(folder), {}
    if network:
        decides = describe(folder).values.get(KEY, {})
    own = None if blend is None else blend.network
    board = next(section for section in sections(report) if section.key == "leaderboard")
    settings = {k: v for k, v in report.settings.items() if k not in report.data and v is not False}
    facts = [*in_words(map(_texts, report.data.items())), *map(_texts, settings.items())]
    others = [row[:2] for row in other_metrics(report)]
    values = {
        "task": task,
        "report": report,
        "headline": translated(headline(report)[0]),
        "lead": board.lead,
        "leaderboard": table(board.columns, board.rows, most=MAX_ROWS),
        "other_metrics": table(("metric", "value"), in_words(others)) if others else "",
        "facts": table(("", ""), facts),
        # Linear models alone take only seconds.
        "network": network,
        "ordinary": network and report.ordinary,
        "alone": blend is not None and blend.is_network,
        "agreed": f"{own.same:,} of {own.rows:,}" if own is not None and own.rows else "",
        "threshold": decides.get("threshold"),
        "decision": decides.get("decision"),
    }
    # Without a network there is nothing for Transformers to load.
    library = task.library if network else "ownbert"
    front = {"library_name": library, "pipeline_tag": task_kinds()[task.name].pipeline}
    return save_card(folder, front, __file__, values)


def _texts(fact: tuple[str, object]) -> tuple[str, str]:
    """A setting as shown in the card; files by name only, because the card may be published."""
    name, value = fact
    values = value if isinstance(value, list | tuple) else [value]
    return name, ", ".join(Path(v).name if isinstance(v, str) else plain_value(v) for v in values)
