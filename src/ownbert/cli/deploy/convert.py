"""convert: turn a checkpoint of Google's BERT into a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import Quiet, required_output
from ownbert.terminal import say


def convert(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CKPT",
            help="bert_model.ckpt: the path of the files without .index and .data-..., or the "
            "folder that contains them.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New folder for the model.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Configuration of the model.", show_default="bert_config.json next to it"
        ),
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option(help="Vocabulary of the model.", show_default="vocab.txt next to it"),
    ] = None,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--uncased",
            help="Whether the model is cased.",
            show_default="whether vocab.txt has capitals",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Convert a TensorFlow checkpoint of google-research/bert to a model folder.

    TensorFlow is not required, and all checksums are verified. The state of the optimiser is
    left out.

    Example: ownbert convert uncased_L-12_H-768_A-12/bert_model.ckpt -o models/bert
    """
    from ownbert.checkpoint.google import convert as run
    from ownbert.files.folders import writing

    output = required_output(output)
    with writing(output):
        model = run(checkpoint, output, config=config, vocabulary=vocab, cased=cased)
    if not quiet:
        count = sum(parameter.numel() for parameter in model.parameters())
        say(f"{model.config.num_hidden_layers} layers, {count:,} parameters")
        say(f"saved {output}")
