"""Ids and texts in a file that is memory-mapped."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ownbert.inference.vector_files import Record

_NAMES = ["id", "text"]


@contextmanager
def row_writer(path: Path) -> Iterator[Callable[[Sequence[Record]], None]]:
    """Write ids, as JSON, and texts to a file."""
    import pyarrow as pa

    schema = pa.schema(list(zip(_NAMES, (pa.string(), pa.large_string()), strict=True)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as rows:

        def write(records: Sequence[Record]) -> None:
            ids = pa.array([json.dumps(id) for id, _ in records], pa.string())
            texts = pa.array([text for _, text in records], pa.large_string())
            rows.write_batch(pa.record_batch([ids, texts], schema=schema))

        yield write


class RowFile:
    """Reads a file of ``row_writer``, memory-mapped.

    Attributes:
        bytes: total size of the rows.

    Raises:
        ValueError, OSError: the file is damaged or of another kind.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._rows = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        self.bytes = self._rows.nbytes
        if self._rows.schema.names != _NAMES:
            raise ValueError(str(path))

    def __len__(self) -> int:
        return len(self._rows)

    def id(self, row: int) -> Any:
        """The id of a row from 0."""
        return json.loads(self._rows["id"][row].as_py())

    def text(self, row: int) -> str:
        """The text of a row from 0."""
        return self._rows["text"][row].as_py()

    def texts(self) -> Iterator[str]:
        """Iterate over all texts."""
        for batch in self._rows.to_batches():
            yield from (text.as_py() for text in batch["text"])
