"""explain: the words that a prediction depends on."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli.input_texts import given_input
from ownbert.cli.options import Data, Device, Encoding, Network, TextColumns, TextsOrFile, numbers
from ownbert.cli.recipe_options import settings_command
from ownbert.exceptions import InputError
from ownbert.files.writing import together, write_text
from ownbert.language import translated
from ownbert.settings import setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import console, echo, say

if TYPE_CHECKING:
    from rich.console import Console

    from ownbert.inspect.explain.explanation import Explanation
    from ownbert.inspect.internals.observation import Observation

_BAR = 16  # characters of the longest bar
_METHOD = "integrated_gradients"
_LABELS = 3  # labels explained on a page
_NOTHING = 'nothing to explain; give a text, such as ownbert explain FOLDER "a text", or a file'


@dataclass(frozen=True, kw_only=True)
class ExplainSettings:
    """Options for explanations and their outputs."""

    method: str | None = setting(
        None,
        "integrated_gradients, gradient_x_input, attention_rollout, attention_x_gradient, "
        "leave_one_out or shapley; for a page, several separated by commas. For images, those "
        "with attention; for the blend of a fit folder, the last two.",
        shown="by the model",
    )
    target: str | None = setting(
        None,
        "What to explain: a label, the number of a choice, an entity type, or a token for the "
        "mask.",
        option="--target --class",
        shown="the prediction",
    )
    by: str = setting("word", "Sum values by word or by sentence.")
    top: int = setting(
        12,
        "Words to print per text.",
        check=between(1, limits.VOCABULARY, "[]"),
        without=("output", "html", "png", "json"),
    )
    rows: int = setting(
        20, "Number of rows to read from a file.", check=between(1, limits.COUNT, "[]")
    )
    output: Path | None = setting(
        None,
        "File to write: .html, .png, or .jsonl with a line per prediction.",
        option="--output -o",
    )
    html: Path | None = setting(None, "Write a page with the coloured texts, attention and layers.")
    png: Path | None = setting(None, "Draw the predictions and the texts as a picture.")
    layers: str | None = setting(None, "Layers on the page, such as 0,3-5.", shown="as many as fit")
    heads: str | None = setting(None, "Heads, such as 0,3-5.", shown="all")
    json: bool = setting(False, "Print JSON, one line per prediction.")

    @property
    def outputs(self) -> list[Path]:
        """The output files; without any, predictions are printed."""
        return [file for file in (self.output, self.html, self.png) if file is not None]

    @property
    def methods(self) -> list[str] | None:
        """Names of methods; None: the default."""
        return None if self.method is None else [name.strip() for name in self.method.split(",")]

    def by_ending(self) -> "ExplainSettings":
        """The settings with a page or picture named by ``output`` as ``html`` or ``png``.

        Raises:
            InputError: the name has another ending, or an option has no effect.
        """
        settings = self
        if self.output is not None:
            kind = {".html": "html", ".png": "png", ".jsonl": ""}.get(self.output.suffix.lower())
            if kind is None:
                raise InputError("{output}: {-o} must end with .html, .png or .jsonl", self.output)
            if kind and getattr(self, kind) is not None:
                raise InputError(
                    "{-o} and --{kind} name two files of the same kind; omit one of them", kind
                )
            settings = replace(self, output=None, **{kind: self.output}) if kind else self
        for name in ("layers", "heads"):
            if getattr(settings, name) is not None and settings.html is None:
                raise InputError("the option --{name} requires {--html}", name)
        return settings


@settings_command
def explain(
    folder: Annotated[Path, typer.Argument(help="Folder of a trained model.")],
    texts: TextsOrFile = None,
    data: Data = None,
    *,
    settings: ExplainSettings,
    columns: TextColumns,
    encoding: Encoding = None,
    device: Device = "auto",
    network: Network = False,
) -> None:
    """Show how much each word of a text contributes to a model's prediction.

    Works for any task on texts: a label, several labels, a number, tagged entities, an answer,
    a choice, the similarity of two texts, the word predicted for a mask, and each word of a
    translation. For images, shows the patches, on a page or as a picture. Values above 0
    support the prediction, values below 0 oppose it; those of integrated_gradients add up to
    the effect of all words. ownbert faithfulness compares the methods.

    Example: ownbert explain runs/clf "my parcel has not arrived" --png clf.png

    Example: ownbert explain runs/clf dev.csv --rows 50 -o explained.html
    """
    settings = settings.by_ending()
    if (description := _image_description(folder)) is not None:
        paths = [*map(Path, texts or ()), *([] if data is None else [data])]
        _refuse_words(settings, columns)
        _explain_images(folder, description, paths, settings, device)
    else:
        given = given_input(texts or (), data, missing=_NOTHING)
        how = {"columns": columns, "device": device, "network": network}
        _explain_texts(folder, given, settings, **how)


def _explain_texts(folder: Path, given: Any, settings: ExplainSettings, **how: Any) -> None:
    """Explain predictions for texts; ``how``: options of ``Explainer``."""
    from itertools import islice

    from ownbert.figures import figure_class
    from ownbert.inspect.explain.explain import Explainer
    from ownbert.inspect.explain.explanation import skipped_warning
    from ownbert.inspect.explain.explanation_pages import draw_explanations, write_page
    from ownbert.inspect.internals.attention_weights import HeadChoice
    from ownbert.inspect.internals.observation import BUDGET
    from ownbert.tables.memory import Lines

    html, png = settings.html, settings.png
    if png is not None:
        figure_class(png)
    choice = HeadChoice(numbers("--layers", settings.layers), numbers("--heads", settings.heads))
    explainer = Explainer(folder, **how)
    expected, data = settings.rows, given
    if isinstance(given, list):
        expected = min(expected, len(given))
    elif not isinstance(given, Path):
        lines = list(islice(given, expected))
        if not lines:
            raise InputError("the input is empty")
        expected, data = len(lines), Lines(lines)
    all_explanations: list[Explanation] = []
    inside: list[Observation | None] = []
    options = {"target": settings.target, "by": settings.by, "rows": settings.rows}
    if html is not None:  # a page offers several of the most probable labels
        options["labels"] = _LABELS
    for encoded, explanations in explainer.explained(data, method=settings.methods, **options):
        all_explanations += explanations
        if html is not None:
            inside.append(explainer.observe(encoded, choice=choice, budget=BUDGET // expected))
    if explainer.note is not None and not how["network"]:
        say(f"note: {explainer.note}", err=True)
    _print_explanations(all_explanations, settings)
    with together():
        if settings.output is not None:
            _write_json(settings.output, map(_json, all_explanations))
        if html is not None:
            write_page(all_explanations, html, title=folder.name, inside=inside)
        if png is not None:
            every = html is None or settings.target
            drawn = [each for each in all_explanations if every or _is_most_probable(each)]
            if (warning := draw_explanations(drawn, png, title=folder.name)) is not None:
                say(f"warning: {warning}", err=True)
    _say_saved(settings)
    if not settings.outputs and not all_explanations:
        say("nothing to explain: no words, or nothing found in them", err=True)
    elif explainer.skipped:
        say(f"warning: {skipped_warning(explainer.skipped)}", err=True)


def _print_explanations(explanations: Sequence["Explanation"], settings: ExplainSettings) -> None:
    shown = console()
    for number, each in enumerate(explanations):
        if settings.json:
            echo(_json(each))
        elif not settings.outputs:
            if number:
                shown.print()
            _show(each, settings.top, shown)


def _json(explanation: "Explanation", *, row: bool = True) -> str:
    """A line of JSON; ``row``: with the index of the row."""
    number = {"row": explanation.row} if row else {}
    return json.dumps({**number, **explanation.to_dict()}, ensure_ascii=False)


def _write_json(path: Path, lines: Iterable[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


def _say_saved(settings: ExplainSettings) -> None:
    for file in settings.outputs:
        say(f"saved {file}", err=settings.json)


def _image_description(folder: Path) -> Any:
    """The description of an image model; None for a text model."""
    from ownbert.checkpoint import CONFIG, describe
    from ownbert.checkpoint.description import generator_in
    from ownbert.hub import model_folder

    folder = model_folder(folder)
    if not (folder / CONFIG).is_file() or generator_in(folder):
        return None
    description = describe(folder)
    return None if description.config.image is None else description


def _refuse_words(settings: ExplainSettings, columns: ColumnNames) -> None:
    """Refuse options that apply to words and tables, for images."""
    plain = ExplainSettings()
    changed = (n for n in ("by", "top", "layers", "heads") if vars(settings)[n] != vars(plain)[n])
    for name in (*changed, *columns.settings()):
        raise InputError("images have no words: omit --{name}", name.replace("_", "-"))


def _explain_images(
    folder: Path, description: Any, images: list[Path], settings: ExplainSettings, device: str
) -> None:
    """Explain the classes of images, on a page or as a picture with the relevance of patches."""
    from ownbert.hub import model_folder
    from ownbert.inspect.explain.explanation_pages import write_page
    from ownbert.vision.explained_images import IMAGE_METHODS, explain_images
    from ownbert.vision.relevance_maps import draw_relevance

    if not images:
        raise InputError(_NOTHING)
    html, png, target, rows = settings.html, settings.png, settings.target, settings.rows
    methods = settings.methods
    if methods in (None, [_METHOD]):  # the default only works for texts
        methods = list(IMAGE_METHODS) if html is not None else [IMAGE_METHODS[0]]
    explanations, pixels = explain_images(
        model_folder(folder),
        description,
        images,
        methods=methods,
        target=target,
        rows=rows,
        classes=1 if html is None else _LABELS,
        device=device,
    )
    for each in explanations:
        if settings.json:
            echo(_json(each, row=False))
        elif not settings.outputs:
            say(f"{each.texts[0]}: {each.target}, probability {each.probability:.3f}")
    with together():
        if settings.output is not None:
            _write_json(settings.output, (_json(each, row=False) for each in explanations))
        if html is not None:
            write_page(explanations, html, title=folder.name, pixels=pixels)
        if png is not None:
            draw_relevance(folder, images, png, label=target, rows=rows)
    _say_saved(settings)


def _is_most_probable(explanation: "Explanation") -> bool:
    """Whether it explains the most probable prediction, not an alternative offered on a page."""
    return len(explanation.answers) < 2 or explanation.target == explanation.answers[0][0]


def _show(explanation: "Explanation", top: int, output: "Console") -> None:
    """Print the target, and the words with the largest values in text order, with bars."""
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    of = f"  ({translated('network')})" if explanation.of_network else ""
    output.print(Text(f"{explanation.target}  {explanation.probability:.3f}{of}", style="bold"))
    chosen = np.sort(np.argsort(-np.abs(explanation.values), kind="stable")[:top])
    largest = float(np.abs(explanation.values).max(initial=0)) or 1.0
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(max_width=40, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    for index in chosen:
        value = float(explanation.values[index])
        bar = "█" * max(1, round(_BAR * abs(value) / largest))
        style = "blue" if value > 0 else "yellow"
        table.add_row(Text(f"  {explanation.word(index)}"), f"{value:+.4f}", Text(bar, style=style))
    output.print(table)
    if explanation.gap is not None:
        gap = f"not accounted for: {explanation.gap:.1%} of the effect of all words"
        output.print(Text(translated(gap), "dim"))
