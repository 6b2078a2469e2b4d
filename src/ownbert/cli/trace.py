"""trace: self-attention step by step, with every number."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.language import translated
from ownbert.terminal import console, echo


def trace(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of a model; without one, the worked example.")
    ] = None,
    text: Annotated[
        str | None, typer.Argument(help="What the model reads.", show_default=False)
    ] = None,
    layer: Annotated[
        int, typer.Option(help="Of the model, counted from 0.", min=0, max=limits.LAYERS)
    ] = 0,
    head: Annotated[
        int, typer.Option(help="Of the layer, counted from 0.", min=0, max=limits.WIDTH)
    ] = 0,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="JSON or npz with inputs (T x D), query, key and value (D x K).",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        bool,
        typer.Option("--scale", help="Divide the scores by sqrt(K), as a model does by itself."),
    ] = False,
    digits: Annotated[
        int | None,
        typer.Option(
            "--round",
            help="Round the weights to this many decimals, each row still summing to 1.",
            show_default=False,
            min=0,
            max=limits.DECIMALS,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with every number and how it is computed; of a model also the "
            "attention of all heads.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show self-attention step by step: queries, keys, values, scores, weights, outputs.

    Without a folder it is a worked example of three tokens, or the numbers of --inputs.

    Example: ownbert trace runs/bert "12 7 845 9" --layer 1 --head 1 --html page.html
    """
    from json import dumps

    from ownbert.errors import InputError
    from ownbert.inspect.trace.trace import show

    inside = None
    if folder is not None:
        if inputs is not None or scale or digits is not None:
            raise InputError("--inputs, --scale and --round are for numbers without a model")
        if text is None:
            raise InputError('a text is needed: ownbert trace FOLDER "the text"')
        from ownbert.inspect.trace.model_trace import trace_and_observe, trace_folder

        if html is None:
            found = trace_folder(folder, text, layer, head)
        else:
            found, inside = trace_and_observe(folder, text, layer, head)
    else:
        from ownbert.inspect.trace.worked_example import EXAMPLE, read_inputs, trace_attention

        if layer or head:
            raise InputError("--layer and --head are of a model; name its folder and a text")
        numbers = EXAMPLE if inputs is None else read_inputs(inputs)
        found = trace_attention(**numbers, scale=scale, digits=digits)
    if html is not None:
        from ownbert.inspect.trace.trace_page import write_page

        write_page(found, html, inside=inside)
        echo(translated(f"saved {html}"), err=True)
    if json:
        echo(dumps(found.as_json(), ensure_ascii=False))
    elif html is None:
        show(found, console())
