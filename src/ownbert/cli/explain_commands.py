"""Commands that explain predictions: explain, faithfulness, relevance."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.command import argument
from ownbert.exceptions import InputError
from ownbert.files.writing import together, write_text
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.settings import changed, setting
from ownbert.terminal import console, echo, say

if TYPE_CHECKING:
    from ownbert.inspect.explain.explanation import Explanation
    from ownbert.inspect.internals.observation import Observation

_BAR = 16  # characters of the longest bar
_METHOD = "integrated_gradients"
_LABELS = 3  # labels explained on a page
_NOTHING = 'nothing to explain; give a text, such as ownbert explain FOLDER "a text", or a file'


class ExplainCommand(o.TaskRows):
    """Show how much each word of a text contributes to a model's prediction.

    Works for any task on texts: a label, several labels, a number, tagged entities, an answer,
    a choice, the similarity of two texts, the word predicted for a mask, and each word of a
    translation. For images, shows the patches, on a page or as a picture. Values above 0
    support the prediction, values below 0 oppose it; those of integrated_gradients add up to
    the effect of all words. ownbert faithfulness compares the methods.

    Example: ownbert explain runs/clf "my parcel has not arrived" --png clf.png

    Example: ownbert explain runs/clf dev.csv --rows 50 -o explained.html
    """

    folder: Path = o.TRAINED_FOLDER
    texts: list[str] | None = o.TEXTS_OR_FILE
    data: Path | None = o.DATA
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
        None, "File to write: .html, .png, or .jsonl with a line per prediction."
    )
    html: Path | None = setting(None, "Write a page with the coloured texts, attention and layers.")
    png: Path | None = setting(None, "Draw the predictions and the texts as a picture.")
    layers: str | None = setting(None, "Layers on the page, such as 0,3-5.", shown="as many as fit")
    heads: str | None = setting(None, "Heads, such as 0,3-5.", shown="all")
    json: bool = changed(o.JSON, help="Print JSON, one line per prediction.")

    def run(self) -> None:
        self._name_outputs()
        methods = self.method and [name.strip() for name in self.method.split(",")]
        if (description := _image_description(self.folder)) is not None:
            self._explain_images(description, methods or None)
        else:
            data = o.given_input(self.texts, self.data, missing=_NOTHING)
            self._explain_texts(data, methods or None)

    def _name_outputs(self) -> None:
        """Make a page or picture named by ``output`` that of --html or --png."""
        if (output := self.output) is not None:
            kind = {".html": "html", ".png": "png", ".jsonl": ""}.get(output.suffix.lower())
            if kind is None:
                raise InputError("{output}: {-o} must end with .html, .png or .jsonl", output)
            if kind and getattr(self, kind) is not None:
                raise InputError(
                    "{-o} and --{kind} name two files of the same kind; omit one of them", kind
                )
            if kind:
                self.output = None
                setattr(self, kind, output)
        for name in ("layers", "heads"):
            if getattr(self, name) is not None and self.html is None:
                raise InputError("the option --{name} requires {--html}", name)

    def _explain_texts(self, data: Any, methods: list[str] | None) -> None:
        from itertools import islice

        from ownbert.figures import figure_class
        from ownbert.inspect.explain.explain import Explainer, skipped_warning
        from ownbert.inspect.explain.explanation import draw_explanations
        from ownbert.inspect.internals.observation import BUDGET, HeadChoice
        from ownbert.tables.memory import Lines

        html = self.html
        if self.png is not None:
            figure_class(self.png)
        choice = HeadChoice(o.numbers("--layers", self.layers), o.numbers("--heads", self.heads))
        explainer = Explainer(self.folder, **self.compute)
        expected = self.rows
        if isinstance(data, list):
            expected = min(expected, len(data))
        elif not isinstance(data, Path):
            lines = list(islice(data, expected))
            if not lines:
                raise InputError("the input is empty")
            expected, data = len(lines), Lines(lines)
        found: list[Explanation] = []
        inside: list[Observation | None] = []
        options = {"target": self.target, "by": self.by, "rows": self.rows}
        if html is not None:  # a page offers several of the most probable labels
            options["labels"] = _LABELS
        for encoded, explanations in explainer.explained(data, method=methods, **options):
            found += explanations
            if html is not None:
                budget = BUDGET // expected
                inside.append(explainer.observe(encoded, choice=choice, budget=budget))
        if explainer.note is not None and not self.network:
            say("note: {line!t}", explainer.note, err=True)
        self._print(found)

        def draw(png: Path) -> str | None:
            every = html is None or self.target
            drawn = [shown for shown in found if every or _is_most_probable(shown)]
            return draw_explanations(drawn, png, title=self.folder.name)

        self._write(found, draw, inside=inside)
        if not self._outputs and not found:
            say("nothing to explain: no words, or nothing found in them", err=True)
        elif explainer.skipped:
            say("warning: {line!t}", skipped_warning(explainer.skipped), err=True)

    def _explain_images(self, description: Any, methods: list[str] | None) -> None:
        """Explain the classes of images, on a page or as a picture with the relevance of
        patches."""
        from ownbert.hub import model_folder
        from ownbert.vision.explained_images import IMAGE_METHODS, explain_images
        from ownbert.vision.relevance_maps import draw_relevance

        images = [*map(Path, self.texts or ()), *([] if self.data is None else [self.data])]
        plain = ExplainCommand()
        words = ("by", "top", "layers", "heads", "text_column", "second_column")
        for name in words:
            if getattr(self, name) != getattr(plain, name):
                raise InputError("images have no words: omit --{name}", name.replace("_", "-"))
        if not images:
            raise InputError(_NOTHING)
        if methods in (None, [_METHOD]):  # the default only works for texts
            methods = list(IMAGE_METHODS) if self.html is not None else [IMAGE_METHODS[0]]
        found, pixels = explain_images(
            model_folder(self.folder),
            description,
            images,
            methods=methods,
            target=self.target,
            rows=self.rows,
            classes=1 if self.html is None else _LABELS,
            device=self.device,
        )

        def draw(png: Path) -> None:
            draw_relevance(self.folder, images, png, label=self.target, rows=self.rows)

        self._print(found)
        self._write(found, draw, pixels=pixels)

    @property
    def _outputs(self) -> list[Path]:
        """The output files; without any, predictions are printed."""
        return [file for file in (self.output, self.html, self.png) if file is not None]

    def _print(self, explanations: Sequence["Explanation"]) -> None:
        output = console()
        for index, explanation in enumerate(explanations):
            if self.json:
                echo(_as_line(explanation))
            elif not self._outputs and not explanation.words:  # of an image
                probability = f"probability {explanation.probability:.3f}"
                say(f"{explanation.texts[0]}: {explanation.target}, {probability}")
            elif not self._outputs:
                if index:
                    output.print()
                _show_words(explanation, self.top, output)

    def _write(
        self, explanations: Sequence["Explanation"], draw: Callable[[Path], str | None], **page: Any
    ) -> None:
        """Write the output files; ``draw`` writes the picture and returns a warning."""
        from ownbert.inspect.explain.explanation import write_page

        with together():
            if self.output is not None:
                write_text(self.output, "".join(f"{_as_line(found)}\n" for found in explanations))
            if self.html is not None:
                write_page(explanations, self.html, title=self.folder.name, **page)
            if self.png is not None and (warning := draw(self.png)) is not None:
                say("warning: {line!t}", warning, err=True)
        for file in self._outputs:
            say("saved {output}", file, err=self.json)


def _as_line(explanation: Any) -> str:
    """A line of JSON; that of a text, not an image, has the index of its row."""
    row = {"row": explanation.row} if explanation.words else {}
    return json.dumps({**row, **explanation.to_dict()}, ensure_ascii=False)


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


def _is_most_probable(explanation: "Explanation") -> bool:
    """Whether it explains the most probable prediction, not an alternative offered on a page."""
    return len(explanation.answers) < 2 or explanation.target == explanation.answers[0][0]


def _show_words(explanation: "Explanation", top: int, output: Any) -> None:
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
        gap = Message("not accounted for: {gap:.1%} of the effect of all words", explanation.gap)
        output.print(Text(translated(gap), "dim"))


# Maximum number of predictions; each takes several hundred forward passes.
_MOST_ROWS = 100_000


class FaithfulnessCommand(o.TaskRows):
    """Measure which explanation method is most faithful to a model, compared with a random
    order.

    Words are masked in the order given by each method. Comprehensiveness is the drop in the
    probability of the prediction without its most important words: higher is better.
    Sufficiency is the drop with only these words: lower is better. Both are means over 5, 10,
    20 and 50 % of the words; ± is the standard error over rows. Correlation compares each
    method with leaving out single words.

    Example: ownbert faithfulness runs/clf dev.csv --rows 200 -o faithful.png
    """

    folder: Path = argument(..., "Folder of a trained model that reads texts.")
    file: Path = argument(..., "Rows, as for ownbert predict.")
    methods: str | None = setting(None, "Methods, separated by commas.", shown="all but shapley")
    rows: int = setting(
        100, "Number of predictions to measure on.", check=between(2, _MOST_ROWS, "[]")
    )
    json: bool = o.JSON
    output: Path | None = setting(None, "Picture to write (.png).")

    def run(self) -> None:
        from ownbert.figures import figure_class
        from ownbert.inspect.explain.faithfulness import (
            USUAL,
            best_method,
            draw_curves,
            faithfulness,
            faithfulness_table,
        )

        if self.output is not None:
            figure_class(self.output)
        methods = USUAL
        if self.methods is not None:
            methods = tuple(name.strip() for name in self.methods.split(","))
        given = {**self.given("file", "json", "output", "encoding"), "methods": methods}
        curves = faithfulness(data=self.file, **given, say=o.warn)
        if self.json:
            echo(json.dumps({name: found.row() for name, found in curves.items()}))
        else:
            for line in faithfulness_table(curves):
                echo(line)
            echo()
            if (best := best_method(curves)) is None:
                say("no method is better than a random order")
            else:
                say("the most faithful on these rows: {best}", best)
        if self.output is not None:
            draw_curves(curves, self.output)
            say("saved {output}", self.output, err=self.json)


class RelevanceCommand(o.Command):
    """Draw which image patches a model's predictions rely on.

    Shows attention rollout, and the relevance from attention and its gradient, next to each
    image.

    Example: ownbert relevance runs/digits seven.png -o relevance.png --class 1
    """

    folder: Path = argument(..., "Folder of an image model.")
    images: list[Path] = argument(..., "Images, or folders of them.")
    output: Path = setting(Path("relevance.png"), "PNG to write, one row per image.")
    label: str | None = setting(
        None,
        "Also draw the relevance for this class, next to that for the predicted class.",
        option="--class",
    )
    layers: str | None = setting(
        None, "Layers whose attention is used, from 0, such as 0,1.", shown="all"
    )

    def run(self) -> None:
        from ownbert.vision.relevance_maps import draw_relevance

        given = {**self.given(), "layers": o.numbers("--layers", self.layers)}
        for image in draw_relevance(**given):
            probability = image.probabilities[image.predicted]
            say(
                "{texts}: {target}, probability {probability:.3f}",
                image.name,
                image.answer,
                probability,
            )
        say("saved {output}", self.output)
