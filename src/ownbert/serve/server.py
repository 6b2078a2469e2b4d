"""``serve``: load the models, listen, and stop without losing what was accepted."""

import asyncio
import contextlib
import gc
import re
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ownbert.errors import InputError
from ownbert.hub import model_folder
from ownbert.settings import resolve

_LONGEST_NAME = 100
# A name may be org/model, as on the hub; these would not be found in the path of a request.
_SLASHES = re.compile(r"^/|/$|//|(^|/)\.{1,2}(/|$)")
# Connections that may wait to be accepted.
_BACKLOG = 2048
# Seconds after which a thread of Python lets others go on. The thread of all requests gives up its
# turn at each call of the system, and waits so long for each thread that tokenises (Python: 0.005).
_SWITCH = 0.0005


def named_folders(given: Sequence[str]) -> dict[str, Path]:
    """Folders by the names of their models: ``NAME=FOLDER``, or a folder, whose own name counts.

    Raises:
        InputError: there is no such folder, or two have one name.
    """
    found: dict[str, Path] = {}
    for each in given:
        name, equals, folder = each.partition("=")
        if not equals or Path(each).is_dir():
            name, folder = "", each
        path = model_folder(folder)
        if not path.is_dir():
            raise InputError(f"no such folder: {folder}")
        name = name or path.resolve().name
        if not name or len(name) > _LONGEST_NAME or _SLASHES.search(name) or not name.isprintable():
            raise InputError(f"{name[:40]!r} is no name for a model; write NAME={folder}")
        if name in found:
            raise InputError(f"two models are named {name}; write OTHER={folder}")
        found[name] = path
    return found


def require_memory(folders: Sequence[Path], gigabytes: float | None) -> None:
    """Check that the weights of all folders together are no larger than allowed.

    Raises:
        InputError: they are.
    """
    if gigabytes is None:
        return
    size = sum(
        file.stat().st_size
        for folder in folders
        for pattern in ("*.safetensors", "pytorch_model*.bin")
        for file in folder.rglob(pattern)
        if "checkpoints" not in file.parts and "work" not in file.parts
    )
    if size > gigabytes * 1e9:
        raise InputError(
            f"the weights take {size / 1e9:.1f} GB, and --max-memory is {gigabytes:g}; serve fewer "
            "models, or allow more"
        )


def read_key(path: Path) -> str:
    """The key in a file that nobody else can read.

    Raises:
        InputError: others can read it, or it has none.
    """
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise InputError(f"{path} can be read by others; chmod 600 {path}")
    key = path.read_text(encoding="utf-8", errors="replace").strip()
    if not key or len(key.split()) != 1 or not key.isascii():
        raise InputError(f"{path} has no key: one word of ASCII characters")
    return key


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        InputError: the address is not ours, or the port is taken.
    """
    if not host.strip():
        raise InputError("--host is empty; 0.0.0.0 is every address of this machine")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With its protocol asyncio knows that it may send small parts at once (TCP_NODELAY).
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(_BACKLOG)
    except OSError as error:
        reason = "the port is in use" if error.errno == 98 else (error.strerror or str(error))
        raise InputError(
            f"cannot listen on {host}:{port}: {reason}; choose another --port"
        ) from None
    return found


def _allow_files(wanted: int) -> None:
    """Allow so many open files beside those of the program, as far as the system lets us."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # resource is of Unix alone
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted += 200
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and most > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(
    folders: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    device: str = "auto",
    precision: str = "float32",
    engine: str | None = None,
    max_memory: float | None = None,
    log: bool = True,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> None:
    """Serve model folders over HTTP until SIGTERM or Ctrl-C; what was accepted is answered first.

    Args:
        folders: of models, or ``NAME=FOLDER``.
        host, port: to listen on; port 0 takes a free one.
        device, precision, engine: as of ``Predictor``.
        max_memory: gigabytes that the weights may have together.
        log: whether each request is a line of JSON on standard error.
        say: called with what a person should know.
        settings: those of ``ServeSettings``.

    Raises:
        InputError: a folder, a setting or the address cannot be used.
    """
    try:
        import fastapi  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import prometheus_client  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import uvicorn
    except ImportError as error:
        raise InputError("serve needs more packages: pip install 'ownbert[serve]'") from error
    from ownbert.inference.compute import Compute
    from ownbert.serve.app import make_app
    from ownbert.serve.models import Models
    from ownbert.serve.served_model import ServedModel
    from ownbert.serve.server_settings import ServeSettings
    from ownbert.serve.service import Service

    limits = resolve(ServeSettings, options=settings)
    sys.setswitchinterval(_SWITCH)
    _allow_files(2 * limits.connections + _BACKLOG)
    named = named_folders(folders)
    require_memory(list(named.values()), max_memory)
    with contextlib.closing(listening_socket(host, port)) as listening:
        models = [
            ServedModel(name, folder, Compute(device, precision, engine))
            for name, folder in named.items()
        ]
        service = Service(Models(models), limits)
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
            # What is there stays, and searching it for garbage would hold up all requests.
            gc.freeze()
            service.ready = True
            for model in models:
                if model.note:
                    say(f"{model.name}: {model.note}")
            names = ", ".join(f"{model.name} ({model.task})" for model in models)
            say(f"serving {names} at {address}")
            service.scheduler.run()


@contextlib.contextmanager
def _listening(server: Any, service: Any, listening: socket.socket) -> Iterator[None]:
    """Answer requests in a second thread, until SIGTERM or Ctrl-C or the end of the block; the
    block computes."""

    def stop(*about: object) -> None:
        server.should_exit = True

    # uvicorn's own handlers would raise the signal again in the end, and the exit code be that.
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
