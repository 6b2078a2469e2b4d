"""translate: train an encoder-decoder Transformer on pairs of texts, and translate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ownbert import limits
from ownbert.cli import options as o
from ownbert.cli.input_texts import given_input
from ownbert.cli.progress import counting
from ownbert.cli.recipe_options import recipe_command
from ownbert.exceptions import InputError
from ownbert.settings import resolve
from ownbert.terminal import echo, say
from ownbert.translation.translation_recipe import LENGTH_PENALTY, TranslateRecipe


class _WithFolder(TyperGroup):
    """A group that treats a first argument that is not a command as a folder to translate with."""

    def resolve_command(self, ctx: Any, args: list[str]):
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["use", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_WithFolder,
    name="translate",
    help="Translate sequences with the encoder-decoder Transformer of 2017.\n\nGive a model folder "
    "to translate with; ownbert translate FOLDER --help lists the options.\n\nownbert translate "
    "train --source a.de --target a.en -o runs/de-en\n\nownbert translate runs/de-en new.de -o "
    "new.en",
    no_args_is_help=True,
    add_completion=False,
)

_NOTHING = "no text to translate; give one, or a file"
# Settings of input files, shared with score.
_FILES = ("source", "target", "pairs", "source_column", "target_column")


@app.command()
@recipe_command(
    TranslateRecipe,
    (
        *("source", "target", "pairs", "dev_source", "dev_target", "dev_pairs"),
        *("source_column", "target_column", "max_length", "batch_tokens"),
        *("kind", "vocabulary.size", "shared", "lowercase"),
        *("N", "d_model", "d_ff", "h", "dropout", "norm_first"),
        *("learning_rate", "label_smoothing", "average", "accumulate"),
        *("epochs", "max_steps", "max_minutes", "precision", "device"),
        *("log_every", "save_every", "tensorboard", "seed"),
    ),
    command="translate train",
    common=(
        *("source", "target", "pairs", "dev_source", "dev_target", "dev_pairs", "max_length"),
        *("N", "d_model", "h", "learning_rate", "epochs", "max_minutes", "device", "seed"),
    ),
)
def train(
    *,
    output: o.Output = None,
    overrides: o.Overrides = None,
    settings: dict[str, Any],
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    config: o.Config = None,
    dry_run: o.DryRun = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a translation model on pairs of texts.

    Learns the vocabularies first. Writes the model (an ordinary Hugging Face folder,
    MarianMTModel), log.jsonl, curves.png, recipe.yaml and saved states to resume from.

    Example: ownbert translate train --source train.de --target train.en -o runs/de-en
    """
    from ownbert.train.device import keep_memory
    from ownbert.translation.translation_run import preview_translation, train_translation

    keep_memory()
    recipe = {"config": config, "overrides": overrides or (), **settings}
    if dry_run:
        say(preview_translation(**recipe))
        return
    run_options = {"resume": resume, "overwrite": overwrite, "quiet": quiet}
    train_translation(o.required_output(output), **run_options, **recipe)


# Options of commands that use a trained folder.

Folder = Annotated[Path, typer.Argument(help="Folder of a trained model.")]
Beams = Annotated[
    int, typer.Option(help="Beam width; 1 for greedy search.", min=1, max=limits.BEAMS)
]
LengthPenalty = Annotated[
    float,
    typer.Option(
        help="Strength of the preference for longer translations (0: none).",
        min=-limits.LENGTH_PENALTY,
        max=limits.LENGTH_PENALTY,
    ),
]


# The command that runs when a folder is given instead of a command's name.
@app.command(hidden=True)
def use(
    folder: Folder,
    texts: o.TextsOrFile = None,
    data: o.Data = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File for the translations, one per line; - is standard output."
        ),
    ] = None,
    beams: Beams = 4,
    length_penalty: LengthPenalty = LENGTH_PENALTY,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Maximum length of a translation, in tokens.",
            show_default="twice the source length plus 20",
            min=1,
            max=limits.LENGTH,
        ),
    ] = None,
    device: o.Device = "auto",
    precision: o.Precision = "float32",
    resume: o.ResumeFile = False,
    quiet: o.Quiet = False,
) -> None:
    """Translate texts with a trained model, one line per text, in input order.

    Example: ownbert translate runs/de-en new.de -o new.en
    """
    from ownbert.translation.decode import Translator, one_line, translate_file

    if output is None or str(output) == "-":
        o.require_file(resume=resume)
    translator = Translator(
        folder,
        beams=beams,
        length_penalty=length_penalty,
        max_length=max_length,
        device=device,
        precision=precision,
    )
    # A resumed run identifies its input by the file name.
    inputs = given_input(texts or (), data, missing=_NOTHING)
    if output is None or str(output) == "-":
        for translation in translator(_lines(inputs) if isinstance(inputs, Path) else inputs):
            echo(one_line(translation), flush=True)
        return
    with counting("lines translated", quiet=quiet) as progress:
        translate_file(translator, inputs, output, resume=resume, progress=progress)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, including blank ones."""
    from ownbert.files.text_files import open_text

    return (text for _, text in open_text(path))


@app.command()
@recipe_command(TranslateRecipe, _FILES, command="translate score")
def score(
    folder: Folder,
    settings: dict[str, Any],
    beams: Beams = 4,
    length_penalty: LengthPenalty = LENGTH_PENALTY,
    device: o.Device = "auto",
    precision: o.Precision = "float32",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Translate and evaluate: BLEU with its signature, cased and lowercased.

    Example: ownbert translate score runs/de-en --source test.de --target test.en
    """
    from dataclasses import asdict
    from json import dumps

    from ownbert.translation.bleu import bleu, need_sacrebleu
    from ownbert.translation.decode import Translator
    from ownbert.translation.translation_pairs import read_pairs

    pairs = read_pairs(resolve(TranslateRecipe, options=settings).data)
    if pairs is None:
        raise InputError("{--source} and {--target} are needed: texts and their translations")
    need_sacrebleu()
    translator = Translator(
        folder, beams=beams, length_penalty=length_penalty, device=device, precision=precision
    )
    translations = list(translator(pairs.sources))
    cased, lower = (bleu(translations, pairs.targets, lowercase=low) for low in (False, True))
    if json:
        echo(dumps({"pairs": len(pairs), "bleu": asdict(cased), "lowercase": asdict(lower)}))
        return
    say(f"{len(pairs):,} pairs")
    echo(f"BLEU {cased.score:.2f}  {cased.signature}")
    echo(f"BLEU {lower.score:.2f}  {lower.signature}")
