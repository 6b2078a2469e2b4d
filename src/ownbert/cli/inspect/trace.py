"""trace: self-attention step by step, with all numbers."""

from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli.recipe_options import settings_command
from ownbert.exceptions import InputError
from ownbert.settings import setting
from ownbert.terminal import console, echo, say


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """Options for the computation and its outputs."""

    layer: int = setting(
        0, "Layer of the model, counted from 0.", check=between(0, limits.LAYERS, "[]")
    )
    head: int = setting(
        0, "Head of the layer, counted from 0.", check=between(0, limits.WIDTH, "[]")
    )
    inputs: Path | None = setting(
        None, "JSON or npz with inputs (T x D), query, key and value (D x K)."
    )
    scale: bool = setting(False, "Divide the scores by sqrt(K), as models do.")
    digits: int | None = setting(
        None,
        "Round the weights to this many decimals, each row still summing to 1.",
        option="--round",
        check=between(0, limits.DECIMALS, "[]"),
    )
    html: Path | None = setting(
        None,
        "Write a page with every number and how it is computed; for a model, also the attention "
        "of all heads.",
    )
    json: bool = setting(False, "Print JSON.")


@settings_command
def trace(
    folder: Annotated[
        Path | None, typer.Argument(help="Model folder; without one, the worked example.")
    ] = None,
    text: Annotated[str | None, typer.Argument(help="Text to trace.")] = None,
    *,
    settings: TraceSettings,
) -> None:
    """Show self-attention step by step: queries, keys, values, scores, weights, outputs.

    Without a folder, shows a worked example with three tokens, or the numbers in --inputs.

    Example: ownbert trace runs/bert "12 7 845 9" --layer 1 --head 1 --html page.html
    """
    from ownbert.inspect.trace.trace import show

    inside, html = None, settings.html
    if folder is None:
        result = _trace_numbers(settings)
    else:
        if settings.inputs is not None or settings.scale or settings.digits is not None:
            raise InputError("{--inputs}, {--scale} and {--round} are for numbers without a model")
        if text is None:
            raise InputError('a text is needed: ownbert trace FOLDER "the text"')
        from ownbert.inspect.trace.model_trace import trace_and_observe, trace_folder

        if html is None:
            result = trace_folder(folder, text, settings.layer, settings.head)
        else:
            result, inside = trace_and_observe(folder, text, settings.layer, settings.head)
    if html is not None:
        from ownbert.inspect.trace.trace import write_page

        write_page(result, html, inside=inside)
        say(f"saved {html}", err=True)
    if settings.json:
        echo(dumps(result.as_json(), ensure_ascii=False))
    elif html is None:
        show(result, console())


def _trace_numbers(settings: TraceSettings) -> Any:
    """Trace the worked example, or the numbers in a file."""
    from ownbert.inspect.trace.worked_example import EXAMPLE, read_inputs, trace_attention

    if settings.layer or settings.head:
        raise InputError("{--layer} and {--head} apply to a model; name its folder and a text")
    numbers = EXAMPLE if settings.inputs is None else read_inputs(settings.inputs)
    return trace_attention(**numbers, scale=settings.scale, digits=settings.digits)
