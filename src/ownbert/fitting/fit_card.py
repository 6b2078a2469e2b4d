"""The model card of ``fit``: what was compared, and how to use the folder."""

from pathlib import Path

from ownbert.checkpoint import CONFIG, describe
from ownbert.fitting.report.advice import headline, other_metrics
from ownbert.fitting.report.contents import Report
from ownbert.fitting.report.sections import sections
from ownbert.language import translated
from ownbert.run.model_card import MAX_ROWS, in_words, labels_in_short, save_card, table
from ownbert.tasks.task import KEY, task_class


def write_fit_card(folder: Path, report: Report) -> str | None:
    """Write README.md with the leaderboard, unless the user has written one there.

    Returns:
        A warning, if any.
    """
    task, name = task_class(report.task), folder.resolve().name
    shown = {section.key: section for section in sections(report)}
    board = shown["leaderboard"]
    facts = [*in_words(map(_texts, report.data.items())), *map(_texts, report.settings.items())]
    what = f"A model that {task.purpose}: several models and their blend, made by `ownbert fit`."
    use = f"ownbert predict {name} new.csv -o predictions.jsonl"
    network = []
    if (folder / CONFIG).exists():  # linear models alone need no more than seconds
        what += (
            " The network in this folder is an ordinary one for Transformers; the blend is for "
            "ownbert."
        )
        use += f"\nownbert predict {name} new.csv -o predictions.jsonl --network"
        network = [
            "The network alone, in Transformers:",
            "```python\nfrom transformers import AutoModelForSequenceClassification, "
            "AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{name}")\n'
            f'model = AutoModelForSequenceClassification.from_pretrained("{name}")\n'
            + "\n".join(line.replace("TEXTS", '"a text"') for line in task.transformers_lines)
            + "\n```",
        ]
        threshold = describe(folder).values.get(KEY, {}).get("threshold")
        if threshold is not None:
            network.append(
                f"The network predicts a label from a probability of {threshold:.2f} on "
                "(`ownbert_task` in config.json)."
            )
    blocks = [
        what,
        translated(headline(report)[0]),
        f"Labels: {labels_in_short(report.labels)}." if report.labels else "",
        "## Metrics",
        board.lead,
        table(board.columns, board.rows, most=MAX_ROWS),
        table(("metric", "value"), other_metrics(report)) if other_metrics(report) else "",
        f"The scores are of {report.held_out:,} held-out rows." if report.held_out else "",
        "## Data and settings",
        table(("", ""), facts),
        "## Use",
        f"```sh\n{use}\n```",
        "```python\nimport ownbert\n\n"
        f'predictor = ownbert.Predictor("{name}")\nprint(predictor("a text"))\n```',
        *network,
    ]
    # Without a network Transformers has nothing to load.
    library = task.library if network else "ownbert"
    front = {"library_name": library, "pipeline_tag": task.pipeline_tag}
    return save_card(folder, front, [block for block in blocks if block])


def _texts(fact: tuple[str, object]) -> tuple[str, str]:
    """A setting for people; of a file only its name, for the card may be published."""
    name, value = fact
    values = value if isinstance(value, list | tuple) else [value]
    return name, ", ".join(Path(v).name if isinstance(v, str) else str(v) for v in values)
