"""serve: models behind HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert import limits
from ownbert.cli.options import Quiet
from ownbert.errors import InputError
from ownbert.language import translated
from ownbert.terminal import echo

_LIMITS = "Limits"


def serve(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER|NAME=FOLDER",
            help="Folders of models of any task; several are chosen by their names.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0 is all of the machine's.", envvar="OWNBERT_HOST"
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(help="Port; 0 takes a free one.", min=0, max=65_535, envvar="OWNBERT_PORT"),
    ] = 8080,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the key that clients must send; OWNBERT_API_KEY is the key itself.",
            envvar="OWNBERT_KEY_FILE",
            show_default="none",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu or cuda.", envvar="OWNBERT_DEVICE")
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16 or auto (what is faster here).", envvar="OWNBERT_PRECISION"
        ),
    ] = "float32",
    batch_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens that are computed together.",
            min=1,
            max=limits.BATCH_TOKENS,
            envvar="OWNBERT_BATCH_TOKENS",
            rich_help_panel=_LIMITS,
        ),
    ] = 8192,
    queue_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens that may wait; what comes beyond gets 429.",
            min=1,
            max=limits.BATCH_TOKENS,
            envvar="OWNBERT_QUEUE_TOKENS",
            rich_help_panel=_LIMITS,
        ),
    ] = 262_144,
    request_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens of one request; more gets 413.",
            min=1,
            max=limits.BATCH_TOKENS,
            envvar="OWNBERT_REQUEST_TOKENS",
            rich_help_panel=_LIMITS,
        ),
    ] = 131_072,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds until a request is given up.",
            min=0.001,
            max=86_400,
            envvar="OWNBERT_TIMEOUT",
            rich_help_panel=_LIMITS,
        ),
    ] = 30.0,
    connections: Annotated[
        int,
        typer.Option(
            help="Connections at the same time.",
            min=1,
            max=100_000,
            envvar="OWNBERT_CONNECTIONS",
            rich_help_panel=_LIMITS,
        ),
    ] = 1000,
    idle_seconds: Annotated[
        float,
        typer.Option(
            help="Seconds after which a connection without a request is closed.",
            min=0.1,
            max=86_400,
            envvar="OWNBERT_IDLE_SECONDS",
            rich_help_panel=_LIMITS,
        ),
    ] = 30.0,
    max_memory: Annotated[
        float | None,
        typer.Option(
            help="Gigabytes that the weights of all models may have together.",
            min=0,
            max=1_000_000,
            envvar="OWNBERT_MAX_MEMORY",
            show_default="none",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Serve models over HTTP, by the APIs of OpenAI, Hugging Face and text-embeddings-inference.

    Every task has a path of its own too (/v1/classify and so on; /openapi.json describes them), and
    / is a page to try the model. Requests of all clients are computed in common batches. SIGTERM
    ends it when all that was accepted is answered. Each option can be set by the environment, as in
    OWNBERT_PORT=9000.

    Example: ownbert serve runs/clf --port 9000

    Example: ownbert serve search=runs/minilm topics=runs/clf
    """
    import os

    from ownbert.serve.server import read_key
    from ownbert.serve.server import serve as run
    from ownbert.train.device import keep_memory

    keep_memory()
    key = os.environ.get("OWNBERT_API_KEY")
    if key is not None and key_file is not None:
        raise InputError("OWNBERT_API_KEY and --key-file are both given; leave one of them out")
    run(
        folders,
        host=host,
        port=port,
        device=device,
        precision=precision,
        max_memory=max_memory,
        log=not quiet,
        say=lambda text: echo(translated(text)),
        key=read_key(key_file) if key_file is not None else key,
        batch_tokens=batch_tokens,
        queue_tokens=queue_tokens,
        request_tokens=request_tokens,
        timeout=timeout,
        connections=connections,
        idle_seconds=idle_seconds,
    )
