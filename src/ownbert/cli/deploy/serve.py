"""serve: HTTP server for models."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert.cli.options import Quiet
from ownbert.cli.recipe_options import recipe_command
from ownbert.exceptions import InputError
from ownbert.serve.server_settings import ServeSettings
from ownbert.terminal import say

_SHOWN = (
    *("batch_tokens", "queue_tokens", "request_tokens", "timeout", "connections", "idle_seconds"),
)


@recipe_command(ServeSettings, _SHOWN, command="serve", environment="OWNBERT_")
def serve(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER|NAME=FOLDER",
            help="Model folders, for any task, or indexes of ownbert search build; requests select "
            "one of several by name.",
        ),
    ],
    *,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0 for all addresses.", envvar="OWNBERT_HOST"
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(help="Port; 0 picks a free one.", min=0, max=65_535, envvar="OWNBERT_PORT"),
    ] = 8080,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the API key; OWNBERT_API_KEY sets the key itself.",
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
            help="float32, bfloat16 or auto (the faster one here).", envvar="OWNBERT_PRECISION"
        ),
    ] = "float32",
    engine: Annotated[
        str | None,
        typer.Option(help="Engine, as for predict.", envvar="OWNBERT_ENGINE", show_envvar=False),
    ] = None,
    max_memory: Annotated[
        float | None,
        typer.Option(
            help="Maximum total size of all weights, in GB.",
            min=0,
            max=1_000_000,
            envvar="OWNBERT_MAX_MEMORY",
            show_default="none",
            rich_help_panel="Limits",
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="As for predict: yes=0.9.",
            envvar="OWNBERT_THRESHOLD",
            show_envvar=False,
            show_default=False,
        ),
    ] = None,
    settings: dict[str, Any],
    quiet: Quiet = False,
) -> None:
    """Serve models over HTTP, with the APIs of OpenAI, Hugging Face and
    text-embeddings-inference.

    Each task also has its own path (/v1/classify and so on; see /openapi.json), and / is a page
    for trying out the model. Requests from all clients are batched together. After SIGTERM, the
    server answers all accepted requests and exits. Each option can also be set by an
    environment variable, such as OWNBERT_PORT=9000.

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
        raise InputError("OWNBERT_API_KEY and {--key-file} are both given; omit one of them")
    run(
        folders,
        host=host,
        port=port,
        device=device,
        precision=precision,
        engine=engine,
        max_memory=max_memory,
        threshold=threshold,
        log=not quiet,
        say=say,
        key=read_key(key_file) if key_file is not None else key,
        **settings,
    )
