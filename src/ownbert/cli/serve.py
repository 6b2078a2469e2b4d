"""serve: HTTP server for models."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert.cli.options import Quiet
from ownbert.cli.recipe_options import recipe_command
from ownbert.errors import InputError
from ownbert.language import translated
from ownbert.serve.server_settings import ServeSettings
from ownbert.terminal import echo

_SHOWN = (
    *("batch_tokens", "queue_tokens", "request_tokens", "timeout", "connections", "idle_seconds"),
)


@recipe_command(ServeSettings, _SHOWN, command="serve", environment="OWNBERT_")
def serve(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER|NAME=FOLDER",
            help="Folders of models of any task; several are chosen by their names.",
            show_default=False,
        ),
    ],
    *,
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
            help="File with the key of clients; OWNBERT_API_KEY is the key itself.",
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
    engine: Annotated[
        str | None,
        typer.Option(
            help="As of predict.",
            envvar="OWNBERT_ENGINE",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    max_memory: Annotated[
        float | None,
        typer.Option(
            help="Gigabytes that the weights of all models may have together.",
            min=0,
            max=1_000_000,
            envvar="OWNBERT_MAX_MEMORY",
            show_default="none",
            rich_help_panel="Limits",
        ),
    ] = None,
    settings: dict[str, Any],
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
        engine=engine,
        max_memory=max_memory,
        log=not quiet,
        say=lambda text: echo(translated(text)),
        key=read_key(key_file) if key_file is not None else key,
        **settings,
    )
