"""translate: train an encoder-decoder Transformer on pairs of texts, and translate."""

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.command import RecipeOptions, command_function
from ownbert.exceptions import InputError
from ownbert.settings import resolve, setting
from ownbert.terminal import echo, say
from ownbert.translation.translation_recipe import LENGTH_PENALTY, TranslateRecipe


class _WithFolder(TyperGroup):
    """A group that treats a first argument that is not a command as a folder to translate with."""

    def resolve_command(self, ctx: Any, args: list[str]):
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["use", *args]
        return super().resolve_command(ctx, args)


translate_app = typer.Typer(
    cls=_WithFolder,
    name="translate",
    help="Translate sequences with the encoder-decoder Transformer of 2017.\n\nGive a model folder "
    "to translate with; ownbert translate FOLDER --help lists the options.\n\nownbert translate "
    "train --source a.de --target a.en -o runs/de-en\n\nownbert translate runs/de-en new.de -o "
    "new.en",
    no_args_is_help=True,
    add_completion=False,
)

_SETTINGS = (
    *("source", "target", "pairs", "dev_source", "dev_target", "dev_pairs"),
    *("source_column", "target_column", "max_length", "batch_tokens"),
    *("kind", "vocabulary.size", "shared", "lowercase"),
    *("N", "d_model", "d_ff", "h", "dropout", "norm_first"),
    *("learning_rate", "label_smoothing", "average", "accumulate"),
    *("epochs", "max_steps", "max_minutes", "precision", "device"),
    *("log_every", "save_every", "tensorboard", "seed"),
)
_COMMON = (
    *("source", "target", "pairs", "dev_source", "dev_target", "dev_pairs", "max_length"),
    *("N", "d_model", "h", "learning_rate", "epochs", "max_minutes", "device", "seed"),
)
# Settings of input files, shared with score.
_FILES = ("source", "target", "pairs", "source_column", "target_column")


class TrainTranslationCommand(o.Training):
    """Train a translation model on pairs of texts.

    Learns the vocabularies first. Writes the model (an ordinary Hugging Face folder,
    MarianMTModel), log.jsonl, curves.png, recipe.yaml and saved states to resume from.

    Example: ownbert translate train --source train.de --target train.en -o runs/de-en
    """

    settings: Any = RecipeOptions(TranslateRecipe, _SETTINGS, "translate train", common=_COMMON)

    def run(self) -> None:
        from ownbert.translation.translation_run import preview_translation, train_translation

        if self.dry_run:
            say(preview_translation(**self.recipe))
        elif self.output is not None:
            train_translation(self.output, **self.how, **self.recipe)


class Decoding(o.Command):
    """How a trained folder translates."""

    folder: Path = o.TRAINED_FOLDER
    beams: int = setting(
        4, "Beam width; 1 for greedy search.", check=between(1, limits.BEAMS, "[]")
    )
    length_penalty: float = setting(
        LENGTH_PENALTY,
        "Strength of the preference for longer translations (0: none).",
        check=between(-limits.LENGTH_PENALTY, limits.LENGTH_PENALTY, "[]"),
    )
    device: str = o.DEVICE
    precision: str = o.PRECISION

    def translator(self, **options: Any) -> Any:
        from ownbert.translation.decode import Translator

        how = self.values("beams", "length_penalty", "device", "precision")
        return Translator(self.folder, **how, **options)


class TranslateCommand(Decoding, o.Quiet):
    """Translate texts with a trained model, one line per text, in input order.

    Example: ownbert translate runs/de-en new.de -o new.en
    """

    folder: Path = o.TRAINED_FOLDER
    texts: list[str] | None = o.TEXTS_OR_FILE
    data: Path | None = o.DATA
    output: Path | None = setting(
        None, "File for the translations, one per line; - is standard output."
    )
    max_length: int | None = setting(
        None,
        "Maximum length of a translation, in tokens.",
        shown="twice the source length plus 20",
        check=between(1, limits.LENGTH, "[]"),
    )
    resume: bool = o.RESUME_FILE

    def run(self) -> None:
        from ownbert.files.text_files import open_text
        from ownbert.translation.decode import one_line, translate_file

        output = None if str(self.output) == "-" else self.output
        if output is None:
            o.require_file(resume=self.resume)
        translator = self.translator(max_length=self.max_length)
        # A resumed run identifies its input by the file name.
        nothing = "no text to translate; give one, or a file"
        inputs: Any = o.given_input(self.texts, self.data, missing=nothing)
        if output is None:
            if isinstance(inputs, Path):  # lines, including blank ones
                inputs = (text for _, text in open_text(inputs))
            for translation in translator(inputs):
                echo(one_line(translation), flush=True)
            return
        with self.counting("lines translated") as progress:
            translate_file(translator, inputs, output, resume=self.resume, progress=progress)


class TranslationScoreCommand(Decoding):
    """Translate and evaluate: BLEU with its signature, cased and lowercased.

    Example: ownbert translate score runs/de-en --source test.de --target test.en
    """

    folder: Path = o.TRAINED_FOLDER
    settings: Any = RecipeOptions(TranslateRecipe, _FILES, "translate score")
    json: bool = o.JSON

    def run(self) -> None:
        from ownbert.translation.bleu import bleu, need_sacrebleu
        from ownbert.translation.translation_pairs import read_pairs

        pairs = read_pairs(resolve(TranslateRecipe, options=self.settings).data)
        if pairs is None:
            raise InputError("{--source} and {--target} are needed: texts and their translations")
        need_sacrebleu()
        translations = list(self.translator()(pairs.sources))
        cased, lower = (bleu(translations, pairs.targets, lowercase=low) for low in (False, True))
        if self.json:
            echo(dumps({"pairs": len(pairs), "bleu": asdict(cased), "lowercase": asdict(lower)}))
            return
        say("{count:,} pairs", len(pairs))
        echo(f"BLEU {cased.score:.2f}  {cased.signature}")
        echo(f"BLEU {lower.score:.2f}  {lower.signature}")


translate_app.command("train")(command_function(TrainTranslationCommand))
# Runs when a folder is given instead of a command's name.
translate_app.command("use", hidden=True)(command_function(TranslateCommand))
translate_app.command("score")(command_function(TranslationScoreCommand))
