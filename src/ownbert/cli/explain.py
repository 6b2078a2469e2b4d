"""explain: which words an answer rests on."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ownbert import limits
from ownbert.cli.input_texts import given_input
from ownbert.cli.options import Data, Device, Encoding, TextsOrFile
from ownbert.language import translated
from ownbert.terminal import console, echo

if TYPE_CHECKING:
    from rich.console import Console

    from ownbert.inspect.explain.explain import Explanation

_BAR = 16
_METHOD = "integrated_gradients"
_LABELS = 3  # of a page
_NOTHING = 'nothing to explain; give a text, as in ownbert explain FOLDER "a text", or a file'


def explain(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a trained model of texts or images.", show_default=False),
    ],
    texts: TextsOrFile = None,
    data: Data = None,
    method: Annotated[
        str,
        typer.Option(
            help="integrated_gradients, gradient_x_input, attention_rollout, "
            "attention_x_gradient, leave_one_out or shapley; for a page several, with commas. Of "
            "images attention_x_gradient and attention_rollout."
        ),
    ] = _METHOD,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "--class",
            help="What to explain: a label, the number of a choice, the type of an entity, a "
            "token for the mask.",
            show_default="the answer",
        ),
    ] = None,
    by: Annotated[str, typer.Option(help="Add up over each word or each sentence.")] = "word",
    top: Annotated[
        int, typer.Option(help="Words shown of each text.", min=1, max=limits.VOCABULARY)
    ] = 12,
    rows: Annotated[
        int, typer.Option(help="Rows of a file, from the first.", min=1, max=limits.COUNT)
    ] = 20,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with the texts in colours, attention and layers.",
            show_default=False,
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            help="Draw the answers and the texts in colours as a picture.", show_default=False
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers whose attention a page shows, as in 0,3-5.",
            show_default="all that it has room for",
        ),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="Their heads, as in 0,3-5.", show_default="all"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one line per answer.")] = False,
    encoding: Encoding = None,
    device: Device = "auto",
) -> None:
    """Tell how much each word of a text has to do with a model's answer.

    Any task on texts: a label, several labels, a number, the entities of tags, an answer, a choice,
    how alike two texts are, the word that is predicted for a mask, and each word of a translation.
    Of images the patches are shown, on a page or as a picture. Values above 0 are for the
    answer, values below 0 against it; those of integrated_gradients add up to what all words
    together do. ownbert faithfulness tells which method is true of a model.

    Example: ownbert explain runs/clf "my parcel has still not arrived"

    Example: ownbert explain runs/clf dev.csv --rows 50 --html explained.html

    Example: ownbert explain runs/clf "my parcel has still not arrived" --png explained.png
    """
    from itertools import islice

    from ownbert.errors import InputError
    from ownbert.files import refuse_same, together
    from ownbert.inspect.explain.explain import Explainer
    from ownbert.inspect.explain.explain_page import write_page
    from ownbert.inspect.explain.picture import draw_explanations
    from ownbert.inspect.figures import figure_class
    from ownbert.inspect.internals.observation import BUDGET, HeadChoice, Observation

    if (description := _of_images(folder)) is not None:
        paths = [*map(Path, texts or ()), *([] if data is None else [data])]
        if layers is not None or heads is not None or by != "word":
            raise InputError("images have no words: leave --by, --layers and --heads out")
        if not paths:
            raise InputError(_NOTHING)
        for output in filter(None, (html, png)):
            refuse_same(paths, output)
        _explain_images(folder, description, paths, method, target, rows, html, png, json, device)
        return
    given: Any = given_input(texts or (), data, missing=_NOTHING)
    if isinstance(given, Path):
        for output in filter(None, (html, png)):
            refuse_same([given], output)
    if html is None and (layers is not None or heads is not None):
        raise InputError("--layers and --heads are of a page; name it with --html")
    if png is not None:
        figure_class(png)
    choice = HeadChoice(_numbers("--layers", layers), _numbers("--heads", heads))

    if not isinstance(given, list | Path):
        given = list(islice(given, rows))
    explainer = Explainer(folder, device=device)
    methods = [name.strip() for name in method.split(",")]
    found: list[Explanation] = []
    inside: list[Observation | None] = []
    expected = min(rows, len(given)) if isinstance(given, list) else rows
    options = {"method": methods, "target": target, "by": by, "rows": rows}
    if html is not None:  # a page lets one choose among the likeliest labels
        options["labels"] = _LABELS
    for encoded, own in explainer.explained(given, **options):
        found += own
        if html is not None:
            inside.append(explainer.observe(encoded, choice=choice, budget=BUDGET // expected))
    shown = console()
    for number, each in enumerate(found):
        if json:
            echo(json_module.dumps({"row": each.row, **each.to_dict()}, ensure_ascii=False))
        elif html is None and png is None:
            if number:
                shown.print()
            _show(each, top, shown)
    with together():
        if html is not None:
            write_page(found, html, title=folder.name, inside=inside)
        if png is not None:
            answers = [each for each in found if html is None or target or _is_answer(each)]
            if (warning := draw_explanations(answers, png, title=folder.name)) is not None:
                echo(translated(f"warning: {warning}"), err=True)
    _say_saved(html, png, json=json)
    if html is None and png is None and not found:
        echo(translated("nothing to explain: no words, or nothing found in them"), err=True)


def _say_saved(*files: Path | None, json: bool) -> None:
    for file in filter(None, files):
        echo(translated(f"saved {file}"), err=json)


def _of_images(folder: Path) -> Any:
    """The description of a model that reads images; None: it reads texts."""
    from ownbert.checkpoint import CONFIG, describe
    from ownbert.checkpoint.transformer_folder import is_translation
    from ownbert.hub import model_folder

    folder = model_folder(folder)
    if not (folder / CONFIG).is_file() or is_translation(folder):
        return None
    description = describe(folder)
    return None if description.config.image is None else description


def _explain_images(
    folder: Path,
    description: Any,
    images: list[Path],
    method: str,
    target: str | None,
    rows: int,
    html: Path | None,
    png: Path | None,
    json: bool,
    device: str,
) -> None:
    """The classes of images, on a page or as a picture with the relevance of their patches."""
    from ownbert.files import together
    from ownbert.hub import model_folder
    from ownbert.inspect.explain.explain_page import write_page
    from ownbert.inspect.explain.images import IMAGE_METHODS, explain_images
    from ownbert.inspect.explain.overlay import draw_relevance

    methods = [name.strip() for name in method.split(",")]
    if method == _METHOD:  # the default is for texts
        methods = list(IMAGE_METHODS) if html is not None else [IMAGE_METHODS[0]]
    found, pixels = explain_images(
        model_folder(folder),
        description,
        images,
        methods=methods,
        target=target,
        rows=rows,
        classes=1 if html is None else _LABELS,
        device=device,
    )
    for each in found:
        if json:
            echo(json_module.dumps(each.to_dict(), ensure_ascii=False))
        elif html is None and png is None:
            echo(translated(f"{each.name}: {each.target}, probability {each.probability:.3f}"))
    with together():
        if html is not None:
            write_page(found, html, title=folder.name, pixels=pixels)
        if png is not None:
            draw_relevance(folder, images, png, label=target, rows=rows)
    _say_saved(html, png, json=json)


def _is_answer(found: "Explanation") -> bool:
    """Whether it is of the likeliest answer, not of one that a page can be switched to."""
    return len(found.answers) < 2 or found.target == found.answers[0][0]


def _numbers(option: str, given: str | None) -> list[int] | None:
    """The numbers of "0,3-5"; None stays."""
    from ownbert.errors import InputError

    if given is None:
        return None
    found: set[int] = set()
    for piece in given.split(","):
        first, dash, last = (part.strip() for part in piece.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and len(first + last) < 10):
            raise InputError(f"{option} is {given!r}; it must be numbers, as in 0,3-5")
        if int(last) < int(first) or int(last) > limits.WIDTH:
            raise InputError(f"{option} is {given!r}; it must be numbers, as in 0,3-5")
        found |= set(range(int(first), int(last) + 1))
    return sorted(found)


def _show(found: "Explanation", top: int, output: "Console") -> None:
    """The target, and the words with the largest values in the order of the text, with bars."""
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    output.print(Text(f"{found.target}  {found.probability:.3f}", style="bold"))
    chosen = np.sort(np.argsort(-np.abs(found.values), kind="stable")[:top])
    largest = float(np.abs(found.values).max(initial=0)) or 1.0
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(max_width=40, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    for index in chosen:
        value = float(found.values[index])
        bar = "█" * max(1, round(_BAR * abs(value) / largest))
        style = "blue" if value > 0 else "yellow"
        table.add_row(Text(f"  {found.word(index)}"), f"{value:+.4f}", Text(bar, style=style))
    output.print(table)
    if found.gap is not None:
        output.print(
            Text(translated(f"not accounted for: {found.gap:.1%} of what all words do"), "dim")
        )
