"""The options that name columns, by task; they mean something else in each."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ownbert.cli.options import DATA
from ownbert.data.readers import columns
from ownbert.data.readers.columns import ColumnSpec


def _column(spec: ColumnSpec) -> Any:
    """The option that names a column."""
    return Annotated[
        str | None,
        typer.Option(spec.option, help=spec.help, show_default=spec.default, rich_help_panel=DATA),
    ]


COLUMNS: Mapping[str, Mapping[str, Any]] = {
    task: {f"{spec.role}_column": _column(spec) for spec in specs if spec.help}
    for task, specs in {**columns.COLUMNS, "rank": columns.COLUMNS["embed"]}.items()
}
