"""Files and folders on any file system that pyarrow reads: local, s3://, gs://, hdfs://, ..."""

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ownbert.errors import InputError

# The folder, in that of the results, of records of finished parts and of what is being written.
# Names that begin with _ are skipped by whoever reads a folder as a table.
DONE = "_done"
# A path loses one of the slashes of an address.
_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)", re.DOTALL)


def as_address(name: str | Path) -> str:
    """The name of a file or folder: an absolute path, or an address with ``://``."""
    match = _ADDRESS.fullmatch(str(name))
    if match is None:
        return str(Path(name).absolute())
    slashes = ":///" if match[1].lower() == "file" else "://"
    return f"{match[1]}{slashes}{match[2]}"


def is_local(address: str) -> bool:
    """Whether it is a path of this machine, as ``as_address`` gives it."""
    return "://" not in address


def open_file_system(address: str) -> tuple[Any, str]:
    """The pyarrow.fs.FileSystem of an address, and the path there.

    Raises:
        InputError: pyarrow knows no such file system, or it cannot be reached.
    """
    from pyarrow import fs

    if is_local(address):
        return fs.LocalFileSystem(), address
    with read_errors(address):
        return fs.FileSystem.from_uri(address)


@contextlib.contextmanager
def read_errors(address: str) -> Iterator[None]:
    """Turn failures of a file system into ``InputError``, which names ``address``."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise InputError(f"no such file: {address}") from None
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"cannot read {address}: {reason}") from error


@contextlib.contextmanager
def write_errors(address: str) -> Iterator[None]:
    """As ``read_errors``, for what is written."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"cannot write {address}: {reason}") from error


class StoredFolder:
    """A folder for results.

    Args:
        name: a path, or an address with ``://``.
    """

    def __init__(self, name: str | Path) -> None:
        self.address = as_address(name)
        self._files, self._path = open_file_system(self.address)

    def __str__(self) -> str:
        return self.address

    @property
    def local(self) -> Path | None:
        """Its path on this machine, if it is there."""
        return Path(self.address) if is_local(self.address) else None

    def sizes(self, below: str = "") -> dict[str, int]:
        """The names of the files in it, or in a folder in it, and their bytes."""
        from pyarrow import fs

        folder = f"{self._path}/{below}" if below else self._path
        with read_errors(self.address):
            found = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return {each.base_name: each.size for each in found if each.type == fs.FileType.File}

    def names(self) -> list[str]:
        """The names of all that is in it."""
        from pyarrow import fs

        with read_errors(self.address):
            found = self._files.get_file_info(fs.FileSelector(self._path))
        return [each.base_name for each in found]

    def is_folder(self) -> bool | None:
        """Whether it is a folder; None if there is nothing."""
        from pyarrow import fs

        with read_errors(self.address):
            kind = self._files.get_file_info(self._path).type
        return None if kind == fs.FileType.NotFound else kind == fs.FileType.Directory

    def holds(self, name: str) -> bool:
        """Whether it has a file of that name."""
        from pyarrow import fs

        with read_errors(self.address):
            return self._files.get_file_info(f"{self._path}/{name}").type == fs.FileType.File

    def make(self, below: str = "") -> None:
        """Make the folder, or one in it."""
        with write_errors(self.address):
            self._files.create_dir(f"{self._path}/{below}".rstrip("/"), recursive=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, which appears complete or not at all."""
        temporary = f"{self._path}/{DONE}/{secrets.token_hex(4)}.tmp"
        with write_errors(f"{self.address}/{name}"):
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
        """The bytes of a file."""
        with (
            read_errors(f"{self.address}/{name}"),
            self._files.open_input_stream(f"{self._path}/{name}", compression=None) as file,
        ):
            return file.read()

    def read_json(self, name: str) -> dict[str, Any]:
        """The value of a JSON file; empty if it holds no object."""
        try:
            value = json.loads(self.read(name))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if there is one."""
        from pyarrow import fs

        path = f"{self._path}/{name}"
        with write_errors(f"{self.address}/{name}"):
            kind = self._files.get_file_info(path).type
            if kind == fs.FileType.Directory:
                self._files.delete_dir(path)
            elif kind != fs.FileType.NotFound:
                self._files.delete_file(path)
