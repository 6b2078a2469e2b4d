"""``serve``: load the models, listen, and shut down gracefully."""

import asyncio
import contextlib
import gc
import re
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError, needing
from ownbert.files.input_files import allow_open_files
from ownbert.hub import model_folder
from ownbert.language.messages import Message
from ownbert.serve.server_settings import ServeSettings
from ownbert.terminal import say

_LONGEST_NAME = 100  # characters of a model's name
# Names may be org/model, as on the hub, but these could not be matched in a request path.
_SLASHES = re.compile(r"^/|/$|//|(^|/)\.{1,2}(/|$)")
# Backlog of connections to be accepted.
_BACKLOG = 2048
# Switch interval of Python threads in seconds (default 0.005). The event loop's thread loses its
# turn at each system call, and waits this long for each tokenising thread.
_SWITCH = 0.0005


def named_folders(given: Sequence[str]) -> dict[str, Path]:
    """Parse model folders: ``NAME=FOLDER``, or a folder, which is named after itself."""
    found: dict[str, Path] = {}
    for each in given:
        name, equals, folder = each.partition("=")
        if not equals or Path(each).is_dir():
            name, folder = "", each
        path = model_folder(folder)
        if not path.is_dir():
            raise InputError("no such folder: {folder}", folder)
        name = name or path.resolve().name
        if not name or len(name) > _LONGEST_NAME or _SLASHES.search(name) or not name.isprintable():
            raise InputError(
                "{name!r} cannot be the name of a model; write NAME={folder}", name[:40], folder
            )
        if name in found:
            raise InputError("two models are named {name}; write OTHER={folder}", name, folder)
        found[name] = path
    return found


def require_memory(folders: Sequence[Path], gigabytes: float | None) -> None:
    """Refuse weights in all folders, for an index those of its model, that are larger in total."""
    if gigabytes is None:
        return
    size = sum(
        file.stat().st_size
        for folder in map(_with_weights, folders)
        for pattern in ("*.safetensors", "pytorch_model*.bin")
        for file in folder.rglob(pattern)
        if not {"checkpoints", "work"} & {*file.relative_to(folder).parts}
    )
    if size > gigabytes * 1e9:
        raise InputError(
            "the weights take {size:.1f} GB, and {--max-memory} is {gigabytes:g}; serve fewer "
            "models, or allow more",
            size / 1000000000.0,
            gigabytes,
        )


def _with_weights(folder: Path) -> Path:
    from ownbert.unlabelled.index import Index, is_index

    return model_folder(Index(folder).model) if is_index(folder) else folder


def read_key(path: Path) -> str:
    """Read the API key from a file that others cannot read."""
    if not path.is_file():
        raise InputError("no such file: {path}", path)
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise InputError("{path} can be read by others; chmod 600 {path}", path)
    key = path.read_text(encoding="utf-8", errors="replace").strip()
    if not key or len(key.split()) != 1 or not key.isascii():
        raise InputError("{path} has no key: it must contain one word of ASCII characters", path)
    return key


def listening_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket; ``InputError`` if the address is not local, or in use."""
    if not host.strip():
        raise InputError("{--host} is empty; 0.0.0.0 is every address of this machine")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With an explicit protocol asyncio sets TCP_NODELAY.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(_BACKLOG)
    except OSError as error:
        reason = "the port is in use" if error.errno == 98 else (error.strerror or str(error))
        raise InputError(
            "cannot listen on {host}:{port}: {reason}; choose another {--port}", host, port, reason
        ) from None
    return found


def serve(
    folders: Sequence[str],
    limits: ServeSettings,
    *,
    host: str,
    port: int,
    device: str,
    precision: str,
    engine: str | None,
    max_memory: float | None,
    threshold: Any,
    log: bool,
) -> None:
    """Serve model folders over HTTP until SIGTERM or Ctrl-C; accepted requests are completed.

    Args:
        folders: model folders, or ``NAME=FOLDER``.
        max_memory: maximum total size of the weights, in gigabytes.
        threshold: thresholds of labels of a single folder, see ``Predictor``.
        log: whether to write a line of JSON per request to standard error.
    """
    with needing("serve needs more packages: pip install 'ownbert[serve]'"):
        import fastapi  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import prometheus_client  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import uvicorn
    from ownbert.inference.engines import Compute
    from ownbert.serve.app import make_app
    from ownbert.serve.served_model import ServedModel
    from ownbert.serve.service import Service

    sys.setswitchinterval(_SWITCH)
    allow_open_files(2 * limits.connections + _BACKLOG)
    named = named_folders(folders)
    if threshold is not None and len(named) > 1:
        raise InputError(
            "{--threshold} is for a single folder; store thresholds with ownbert evaluate "
            "--save-threshold"
        )
    require_memory(list(named.values()), max_memory)
    with contextlib.closing(listening_socket(host, port)) as listening:
        models = [
            ServedModel(name, folder, Compute(device, precision, engine), threshold)
            for name, folder in named.items()
        ]
        service = Service(models, limits)
        config = uvicorn.Config(
            make_app(service, sys.stderr if log else None),  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=max(1, int(limits.idle_seconds)),
            server_header=False,
            http=service.bounds.protocol,
            backlog=_BACKLOG,
        )
        server = uvicorn.Server(config)
        address = "http://{}:{}".format(*listening.getsockname()[:2])
        with _listening(server, service, listening):
            for model in models:
                model.warm_up()
            # Exclude long-lived objects from garbage collection, which would block all requests.
            gc.freeze()
            service.ready = True
            for model in models:
                if model.note:
                    say(f"{model.name}: {model.note}")
            names = ", ".join(f"{model.name} ({model.task})" for model in models)
            say(Message("serving {names} at {address}", names, address))
            service.scheduler.run()


@contextlib.contextmanager
def _listening(server: Any, service: Any, listening: socket.socket) -> Iterator[None]:
    """Serve requests in a second thread while the block computes, until SIGTERM, Ctrl-C or the end
    of the block."""

    def stop(*about: object) -> None:
        server.should_exit = True

    # uvicorn's handlers would raise the signal again at the end and change the exit code.
    server.capture_signals = contextlib.nullcontext
    thread = threading.Thread(target=lambda: asyncio.run(_run(server, service, listening)))
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run(server: Any, service: Any, listening: socket.socket) -> None:
    sweep = asyncio.ensure_future(service.bounds.sweep(server.server_state.connections))
    try:
        await server.serve(sockets=[listening])
    finally:
        sweep.cancel()
        service.scheduler.close()
