"""Files and folders on any file system that pyarrow supports: local, s3://, gs://, hdfs://, ..."""

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError

# Subfolder of the output folder for records of finished parts and for files being written. Readers
# of a folder as a table ignore names that begin with _.
DONE = "_done"
# ``Path`` removes one of the two slashes of an address.
_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)", re.DOTALL)


def as_address(name: str | Path) -> str:
    """Normalise the name of a file or folder.

    Returns:
        An absolute path, or an address with ``://``.
    """
    match = _ADDRESS.fullmatch(str(name))
    if match is None:
        return str(Path(name).absolute())
    slashes = ":///" if match[1].lower() == "file" else "://"
    return f"{match[1]}{slashes}{match[2]}"


def is_local(address: str) -> bool:
    """Whether a name normalised by ``as_address`` is a local path."""
    return "://" not in address


def open_file_system(address: str) -> tuple[Any, str]:
    """Open the file system of an address.

    Returns:
        The pyarrow.fs.FileSystem, and the path in it.

    Raises:
        InputError: pyarrow does not support the file system, or it cannot be reached.
    """
    from pyarrow import fs

    if is_local(address):
        return fs.LocalFileSystem(), address
    with file_errors(address):
        return fs.FileSystem.from_uri(address)


@contextlib.contextmanager
def file_errors(address: str, action: str = "read") -> Iterator[None]:
    """Convert file system errors into ``InputError`` with the ``address``; ``action``: "read" or
    "write"."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if action == "read" and isinstance(error, FileNotFoundError):
            raise InputError("no such file: {address}", address) from None
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        if action == "write":
            raise InputError("cannot write {address}: {reason}", address, reason) from error
        raise InputError("cannot read {address}: {reason}", address, reason) from error


class StoredFolder:
    """An output folder on any file system.

    Args:
        name: path, or address with ``://``.
    """

    def __init__(self, name: str | Path) -> None:
        self.address = as_address(name)
        self._files, self._path = open_file_system(self.address)

    def __str__(self) -> str:
        return self.address

    @property
    def local(self) -> Path | None:
        """The path if the folder is local, else None."""
        return Path(self.address) if is_local(self.address) else None

    def sizes(self, below: str = "") -> dict[str, int]:
        """Sizes in bytes, by name, of the files in the folder or in its subfolder ``below``."""
        from pyarrow import fs

        folder = f"{self._path}/{below}" if below else self._path
        with file_errors(self.address):
            entries = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return {each.base_name: each.size for each in entries if each.type == fs.FileType.File}

    def names(self) -> list[str]:
        """The names of all files and subfolders."""
        from pyarrow import fs

        with file_errors(self.address):
            entries = self._files.get_file_info(fs.FileSelector(self._path))
        return [each.base_name for each in entries]

    def is_folder(self) -> bool | None:
        """Whether it is a folder; None if it does not exist."""
        from pyarrow import fs

        with file_errors(self.address):
            kind = self._files.get_file_info(self._path).type
        return None if kind == fs.FileType.NotFound else kind == fs.FileType.Directory

    def holds(self, name: str) -> bool:
        """Whether the folder contains a file with this name."""
        from pyarrow import fs

        with file_errors(self.address):
            return self._files.get_file_info(f"{self._path}/{name}").type == fs.FileType.File

    def make(self, below: str = "") -> None:
        """Create the folder, or its subfolder ``below``."""
        with file_errors(self.address, "write"):
            self._files.create_dir(f"{self._path}/{below}".rstrip("/"), recursive=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a file completely or not at all."""
        temporary = f"{self._path}/{DONE}/{secrets.token_hex(4)}.tmp"
        with file_errors(f"{self.address}/{name}", "write"):
            try:
                with self._files.open_output_stream(temporary) as file:
                    file.write(data)
                self._files.move(temporary, f"{self._path}/{name}")
            except BaseException:
                with contextlib.suppress(OSError):
                    self._files.delete_file(temporary)
                raise

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        self.write(name, text.encode())

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with (
            file_errors(f"{self.address}/{name}"),
            self._files.open_input_stream(f"{self._path}/{name}", compression=None) as file,
        ):
            return file.read()

    def read_json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file; empty if the file is damaged or contains no object."""
        try:
            value = json.loads(self.read(name))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it exists."""
        from pyarrow import fs

        path = f"{self._path}/{name}"
        with file_errors(f"{self.address}/{name}", "write"):
            kind = self._files.get_file_info(path).type
            if kind == fs.FileType.Directory:
                self._files.delete_dir(path)
            elif kind != fs.FileType.NotFound:
                self._files.delete_file(path)
