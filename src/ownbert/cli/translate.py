"""translate: train an encoder-decoder Transformer on pairs of texts, and use it."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ownbert.cli import options as o
from ownbert.errors import InputError

if TYPE_CHECKING:
    from ownbert.translate.use import Translator

_NET, _WORDS = "Network", "Vocabulary"
_OURS = ("output", "config", "overrides", "resume", "overwrite", "quiet")


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

_Source = Annotated[
    Path | None,
    typer.Option(help="Texts to translate from, one a line.", rich_help_panel=o.DATA),
]
_Target = Annotated[
    Path | None, typer.Option(help="Their translations, line by line.", rich_help_panel=o.DATA)
]
_Pairs = Annotated[
    Path | None,
    typer.Option(help="Or both in one table (csv, tsv, jsonl, parquet).", rich_help_panel=o.DATA),
]
_DevSource = Annotated[
    Path | None, typer.Option(help="The same to be examined by.", rich_help_panel=o.DATA)
]
_DevTarget = Annotated[Path | None, typer.Option(help="Its translations.", rich_help_panel=o.DATA)]
_DevPairs = Annotated[Path | None, typer.Option(help="Or one table.", rich_help_panel=o.DATA)]
_SourceColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the sources in tables.",
        show_default="the first of two",
        rich_help_panel=o.DATA,
    ),
]
_TargetColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the targets in tables.",
        show_default="the second of two",
        rich_help_panel=o.DATA,
    ),
]
_Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        help="bpe, wordpiece, or blank for text that is already tokens.",
        show_default="bpe",
        rich_help_panel=_WORDS,
    ),
]
_Size = Annotated[
    int | None,
    typer.Option(
        "--vocab-size",
        help="Entries of a vocabulary.",
        show_default="8000",
        rich_help_panel=_WORDS,
    ),
]
_Shared = Annotated[
    bool | None,
    typer.Option(
        "--shared/--separate",
        help="One vocabulary and one matrix for both sides, or one each.",
        show_default="shared",
        rich_help_panel=_WORDS,
    ),
]
_Lowercase = Annotated[
    bool | None,
    typer.Option("--lowercase", help="Forget capitals.", rich_help_panel=_WORDS),
]
_Layers = Annotated[
    int | None,
    typer.Option(
        "--layers", help="Of encoder and of decoder.", show_default="3", rich_help_panel=_NET
    ),
]
_Width = Annotated[
    int | None,
    typer.Option("--d-model", help="Width of a layer.", show_default="256", rich_help_panel=_NET),
]
_Inner = Annotated[
    int | None,
    typer.Option(
        "--d-ff", help="Width of its feed-forward.", show_default="1024", rich_help_panel=_NET
    ),
]
_Heads = Annotated[
    int | None,
    typer.Option("--heads", help="Heads of a layer.", show_default="4", rich_help_panel=_NET),
]
_NormFirst = Annotated[
    bool | None,
    typer.Option(
        "--norm-first",
        help="Normalise before each sublayer (pre-norm); Transformers cannot load that.",
        rich_help_panel=_NET,
    ),
]
_Average = Annotated[
    int | None,
    typer.Option(
        help="Mean of the weights of so many last saved states.",
        show_default="5",
        rich_help_panel=o.LEARNING,
    ),
]
_Smoothing = Annotated[
    float | None,
    typer.Option(
        "--label-smoothing",
        help="Share of a target that is spread over the vocabulary.",
        show_default="0.1",
        rich_help_panel=o.LEARNING,
    ),
]
_Dropout = Annotated[
    float | None,
    typer.Option(help="Dropout of sublayers.", show_default="0.1", rich_help_panel=_NET),
]
_BatchTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens a batch, of both sides.", show_default="4096", rich_help_panel=o.DATA
    ),
]
_Epochs = Annotated[
    int | None,
    typer.Option(help="Times through the pairs.", show_default="20", rich_help_panel=o.RUN),
]
_Minutes = Annotated[
    float | None, typer.Option(help="Stop after so many minutes.", rich_help_panel=o.RUN)
]
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
    source: _Source = None,
    target: _Target = None,
    pairs: _Pairs = None,
    dev_source: _DevSource = None,
    dev_target: _DevTarget = None,
    dev_pairs: _DevPairs = None,
    source_column: _SourceColumn = None,
    target_column: _TargetColumn = None,
    max_length: o.MaxLength = None,
    batch_tokens: _BatchTokens = None,
    kind: _Kind = None,
    vocab_size: _Size = None,
    shared: _Shared = None,
    lowercase: _Lowercase = None,
    layers: _Layers = None,
    d_model: _Width = None,
    d_ff: _Inner = None,
    heads: _Heads = None,
    dropout: _Dropout = None,
    norm_first: _NormFirst = None,
    learning_rate: o.LearningRate = None,
    label_smoothing: _Smoothing = None,
    average: _Average = None,
    accumulate: o.Accumulate = None,
    epochs: _Epochs = None,
    max_steps: o.MaxSteps = None,
    max_minutes: _Minutes = None,
    precision: o.Precision = None,
    device: o.Device = None,
    log_every: o.LogEvery = None,
    save_every: o.SaveEvery = None,
    tensorboard: o.TensorBoard = None,
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    seed: o.Seed = None,
    config: o.Config = None,
    quiet: o.Quiet = False,
) -> None:
    """Learn to turn one text into another: pairs of files in, a model folder out.

    The vocabularies are learnt first. The folder gets the model (an ordinary Hugging Face folder,
    MarianMTModel), log.jsonl, curves.png, recipe.yaml and saved states to go on from.

    Example: ownbert translate train --source train.de --target train.en -o runs/de-en
    """
    from ownbert.cli.learn import given_output
    from ownbert.train.machine import keep_memory
    from ownbert.translate.train import train_translation

    keep_memory()
    options = {_NAMES.get(k, k): v for k, v in context.params.items() if k not in _OURS}
    train_translation(
        given_output(output),
        config=config,
        overrides=overrides or (),
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        **options,
    )


_Folder = Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)]
_Beams = Annotated[int, typer.Option(help="Candidates of the search; 1 is greedy.")]
_Penalty = Annotated[
    float, typer.Option(help="How far longer translations are preferred (0: not at all).")
]
_MostTokens = Annotated[
    int | None,
    typer.Option(help="Tokens of a translation.", show_default="twice the source and 20"),
]
_UseDevice = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
_UsePrecision = Annotated[str, typer.Option(help="float32, bfloat16, or auto: what is faster.")]


def use(
    folder: _Folder,
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
    beams: _Beams = 4,
    length_penalty: _Penalty = 0.6,
    max_length: _MostTokens = None,
    device: _UseDevice = "auto",
    precision: _UsePrecision = "float32",
    quiet: o.Quiet = False,
) -> None:
    """Translate texts with a trained folder, a line each, in their order.

    Example: ownbert translate runs/de-en --input new.de -o new.en
    """
    from ownbert.translate.use import Translator

    if texts and input is not None:
        raise InputError("texts and --input are both given; give one of them")
    if input is not None and output is not None and input.resolve() == output.resolve():
        raise InputError(f"--output {output} is the input; choose another file")
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
            print(written, flush=True)
        return
    _write(translator, texts or _lines(input), output, quiet=quiet or not sys.stderr.isatty())


def _write(translator: "Translator", texts: Iterable[str], output: Path, *, quiet: bool) -> None:
    """The translations into a file that is there when all are."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from ownbert.files import atomic_path, make_folder

    if output.is_dir():
        raise InputError(f"cannot write {output}: it is a folder, a file name is needed")
    make_folder(output.parent)
    shown = SpinnerColumn(), TextColumn("{task.completed:,} translated"), TimeElapsedColumn()
    with (
        Progress(*shown, console=Console(stderr=True), disable=quiet, transient=True) as progress,
        atomic_path(output) as path,
        path.open("w", encoding="utf-8") as file,
    ):
        bar = progress.add_task("", total=None)
        for written in translator(texts):
            file.write(written + "\n")
            progress.advance(bar)


def _lines(path: Path | None) -> Iterator[str]:
    """Lines of a file or of standard input, blank ones too."""
    if path is not None and str(path) != "-":
        from ownbert.files import open_text

        yield from (text for _, text in open_text(path))
        return
    if path is None and sys.stdin.isatty():
        raise InputError("no text to translate; give one, or --input FILE")
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError(f"standard input, line {number}: not UTF-8") from None


def score(
    folder: _Folder,
    source: _Source = None,
    target: _Target = None,
    pairs: _Pairs = None,
    source_column: _SourceColumn = None,
    target_column: _TargetColumn = None,
    beams: _Beams = 4,
    length_penalty: _Penalty = 0.6,
    device: _UseDevice = "auto",
    precision: _UsePrecision = "float32",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Translate and compare: BLEU with its signature, also without regard to capitals.

    Example: ownbert translate score runs/de-en --source test.de --target test.en
    """
    from dataclasses import asdict
    from json import dumps

    from ownbert.translate.pairs import read_pairs
    from ownbert.translate.recipe import PairFiles
    from ownbert.translate.score import bleu, need_sacrebleu
    from ownbert.translate.use import Translator

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
