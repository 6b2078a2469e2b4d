"""translate: train an encoder-decoder Transformer on pairs of texts, and use it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ownbert.cli import options as o
from ownbert.cli import translate_options as t
from ownbert.cli.corpus import counting
from ownbert.cli.lines import stdin_lines
from ownbert.errors import InputError

_OURS = ("output", "config", "overrides", "resume", "overwrite", "dry_run", "quiet")


class _WithFolder(TyperGroup):
    """A name that is no command is the folder of a model to translate with."""

    def resolve_command(self, ctx: Any, args: list[str]):
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["use", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_WithFolder,
    help="Translate: sequences into sequences, by the Transformer of 2017.\n\n"
    "ownbert translate train --source a.de --target a.en -o runs/de-en\n\n"
    "ownbert translate runs/de-en --input new.de -o new.en",
    no_args_is_help=True,
)

# Short names on the command line, and those of the recipe.
_NAMES = {
    "vocab_size": "vocabulary.size",
    "layers": "model.N",
    "heads": "model.h",
}


def train(
    context: typer.Context,
    output: o.ModelFolder = None,
    overrides: o.Overrides = None,
    source: t.Source = None,
    target: t.Target = None,
    pairs: t.Pairs = None,
    dev_source: t.DevSource = None,
    dev_target: t.DevTarget = None,
    dev_pairs: t.DevPairs = None,
    source_column: t.SourceColumn = None,
    target_column: t.TargetColumn = None,
    max_length: o.MaxLength = None,
    batch_tokens: t.BatchTokens = None,
    kind: t.Kind = None,
    vocab_size: t.Size = None,
    shared: t.Shared = None,
    lowercase: t.Lowercase = None,
    layers: t.Layers = None,
    d_model: t.Width = None,
    d_ff: t.Inner = None,
    heads: t.Heads = None,
    dropout: t.Dropout = None,
    norm_first: t.NormFirst = None,
    learning_rate: o.LearningRate = None,
    label_smoothing: t.Smoothing = None,
    average: t.Average = None,
    accumulate: o.Accumulate = None,
    epochs: t.Epochs = None,
    max_steps: o.MaxSteps = None,
    max_minutes: t.Minutes = None,
    precision: o.Precision = None,
    device: o.Device = None,
    log_every: o.LogEvery = None,
    save_every: o.SaveEvery = None,
    tensorboard: o.TensorBoard = None,
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    seed: o.Seed = None,
    config: o.Config = None,
    dry_run: o.DryRun = False,
    quiet: o.Quiet = False,
) -> None:
    """Learn to turn one text into another: pairs of files in, a model folder out.

    The vocabularies are learnt first. The folder gets the model (an ordinary Hugging Face
    folder, MarianMTModel), log.jsonl, curves.png, recipe.yaml and saved states to resume from.

    Example: ownbert translate train --source train.de --target train.en -o runs/de-en
    """
    from ownbert.cli.learn import given_output
    from ownbert.train.device import keep_memory
    from ownbert.translate.run import preview_translation, train_translation

    keep_memory()
    options = {_NAMES.get(k, k): v for k, v in context.params.items() if k not in _OURS}
    if dry_run:
        print(preview_translation(config=config, overrides=overrides or (), **options))
        return
    train_translation(
        given_output(output),
        config=config,
        overrides=overrides or (),
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        **options,
    )


def use(
    folder: t.Folder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts; lines of standard input if none."),
    ] = None,
    input: Annotated[
        Path | None, typer.Option(help="Texts, one a line; - is standard input.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the translations, one a line."),
    ] = None,
    beams: t.Beams = 4,
    length_penalty: t.Penalty = 0.6,
    max_length: t.MostTokens = None,
    device: t.UseDevice = "auto",
    precision: t.UsePrecision = "float32",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a stopped run of the same ended.")
    ] = False,
    quiet: o.Quiet = False,
) -> None:
    """Translate texts with a trained folder, a line each, in their order.

    Example: ownbert translate runs/de-en --input new.de -o new.en
    """
    from ownbert.translate.decode import Translator, one_line, translate_file

    if texts and input is not None:
        raise InputError("texts and --input are both given; give one of them")
    if resume and output is None:
        raise InputError("--resume continues a file; give it as -o FILE")
    translator = Translator(
        folder,
        beams=beams,
        length_penalty=length_penalty,
        max_length=max_length,
        device=device,
        precision=precision,
    )
    if output is None:
        for written in translator(texts or _lines(input)):
            print(one_line(written), flush=True)
        return
    given = input if input is not None and str(input) != "-" else texts or _lines(input)
    with counting("lines translated", quiet=quiet) as progress:
        translate_file(translator, given, output, resume=resume, progress=progress)


def _lines(path: Path | None) -> Iterator[str]:
    """Lines of a file or of standard input, blank ones too."""
    if path is not None and str(path) != "-":
        from ownbert.files import open_text

        yield from (text for _, text in open_text(path))
        return
    if path is None and sys.stdin.isatty():
        raise InputError("no text to translate; give one, or --input FILE")
    yield from stdin_lines()


def score(
    folder: t.Folder,
    source: t.Source = None,
    target: t.Target = None,
    pairs: t.Pairs = None,
    source_column: t.SourceColumn = None,
    target_column: t.TargetColumn = None,
    beams: t.Beams = 4,
    length_penalty: t.Penalty = 0.6,
    device: t.UseDevice = "auto",
    precision: t.UsePrecision = "float32",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Translate and compare: BLEU with its signature, also without regard to capitals.

    Example: ownbert translate score runs/de-en --source test.de --target test.en
    """
    from dataclasses import asdict
    from json import dumps

    from ownbert.translate.decode import Translator
    from ownbert.translate.pairs import read_pairs
    from ownbert.translate.recipe import PairFiles
    from ownbert.translate.score import bleu, need_sacrebleu

    names: dict[str, Any] = {"source": source, "target": target, "pairs": pairs}
    files: dict[str, Any] = {name: path and str(path) for name, path in names.items()}
    found = read_pairs(PairFiles(**files, source_column=source_column, target_column=target_column))
    if found is None:
        raise InputError("--source and --target are needed: texts and their translations")
    need_sacrebleu()
    translator = Translator(
        folder, beams=beams, length_penalty=length_penalty, device=device, precision=precision
    )
    written = list(translator(found.sources))
    cased, lower = (bleu(written, found.targets, lowercase=low) for low in (False, True))
    if json:
        print(dumps({"pairs": len(found), "bleu": asdict(cased), "lowercase": asdict(lower)}))
        return
    print(f"{len(found):,} pairs")
    print(f"BLEU {cased.score:.2f}  {cased.signature}")
    print(f"BLEU {lower.score:.2f}  {lower.signature}")


# ``use`` is what a folder in the place of a command means.
COMMANDS = {"train": train, "score": score, "use": use}
