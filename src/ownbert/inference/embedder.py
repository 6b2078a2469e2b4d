"""Texts to embedding vectors, many at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ownbert import limits
from ownbert.checkpoint import describe, load_tokenizer
from ownbert.data.readers.memory import is_list, is_table, items
from ownbert.errors import InputError
from ownbert.files import refuse_same
from ownbert.hub import model_folder
from ownbert.inference.engines import choose_engine
from ownbert.inference.exported_network import HIDDEN, ExportedNetwork, RoutedNetwork
from ownbert.inference.finished_files import copy_files, finished_files
from ownbert.settings import between
from ownbert.tasks.batched_forward import batches_by_tokens, blocks
from ownbert.tasks.sentence_embedding.embedding_config import POOLINGS, read_embedding_config
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.text.tokenizer import NO_LIMIT
from ownbert.train.device import pick_device, pick_precision

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int], None]
T = TypeVar("T")

BATCH_TOKENS = 4096
# Texts and characters that ``stream`` takes at a time: enough that, sorted by length, the texts of
# a batch have similar lengths, and some ten megabytes at most.
BLOCK_TEXTS, BLOCK_CHARACTERS = 8192, 8_000_000


class Embedder:
    """A model folder, ready to turn texts into embedding vectors.

    The files of sentence-transformers in it (modules.json and those it names) determine the
    pooling, whether vectors are normalized, and where texts are truncated. Without them the vector
    is the mean over all tokens, and texts are truncated at the model's limit.

    Args:
        folder: of the model.
        device: auto (default), cpu or cuda.
        precision: float32 (default), bfloat16, or auto for the faster one. With float32 a vector
            does not depend on the other texts, whatever the folder says of bfloat16.
        max_length: where texts are truncated instead, in tokens including special ones.
        engine: torch, onnx, openvino or auto (``choose_engine``).

    Attributes:
        engine: what computes.
        seen: how many texts there were.
        cut: how many of them were truncated.

    Raises:
        InputError: a folder or a value cannot be used.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str | None = None,
        precision: str | None = None,
        max_length: int | None = None,
        engine: str | None = None,
    ) -> None:
        self.folder = model_folder(folder)
        self.embedding_config = read_embedding_config(self.folder)
        description = describe(self.folder)
        self.config = description.config
        device, precision = device or "auto", precision or "float32"
        self.engine = choose_engine(
            self.folder,
            description,
            engine,
            device=device,
            precision=precision,
            outputs=(HIDDEN,),
        )
        self._device = device
        self.device = pick_device(device) if self.engine.exported is None else "cpu"
        self.precision = pick_precision(precision, device) if self.engine.packed else "float32"
        self._network = self._open()
        self.tokenizer = load_tokenizer(self.folder, config=self.config)
        self.max_length = self._limit(max_length)
        self.builder = TextInputBuilder(self.tokenizer, self.config, self.max_length or NO_LIMIT)
        self.seen = self.cut = 0

    def _open(self) -> Any:
        """What computes vectors: a ``PackedEncoder`` or what has its functions."""
        if self.engine.exported is None:
            return self._packed()
        exported = ExportedNetwork(self.engine.exported, self.config)
        return RoutedNetwork(exported, self._packed) if self.engine.packed else exported

    def _packed(self) -> Any:
        from ownbert.inference.packed_encoder import PackedEncoder

        return PackedEncoder(self.folder, self._device, self.precision)

    @property
    def model(self) -> Any:
        """The model that torch computes; None with another engine."""
        return getattr(self._network, "model", None)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> "Embedder":
        """As ``Embedder(folder)``."""
        return cls(folder, **options)

    @property
    def size(self) -> int:
        """The size of a vector, D."""
        return self.config.hidden_size

    def save_pretrained(self, folder: str | Path) -> None:
        """Copy the files of the folder that are needed to use it.

        Raises:
            InputError: it is the folder itself, or a link in it leaves it.
        """
        refuse_same(self.folder, folder)
        copy_files(self.folder, Path(folder), finished_files(self.folder))

    save = save_pretrained  # of sentence-transformers

    def encode(
        self,
        texts: Any,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        precision: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool | None = None,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        device: str | None = None,
    ) -> Any:
        """One vector per text, in their order; an empty text has one too.

        Args:
            texts: a list, an array or a Series of texts, or a single text.
            pooling: mean, first or max over the tokens, special ones included; by default as in the
                folder.
            normalize: whether vectors have length one; by default as in the folder.
            precision: instead of the embedder's.
            batch_tokens: tokens in one forward pass; a longer text is a batch by itself.
            progress: called with the number of texts so far.
            prompt: prepended to every text; by default as in the folder.
            normalize_embeddings, convert_to_tensor, batch_size, show_progress_bar: as in
                sentence-transformers: ``normalize``, torch tensors instead of arrays, the most
                texts in one forward pass, a bar.
            convert_to_numpy: False: a list of tensors.
            device: where the model already is; another one is named when the folder is loaded.

        Returns:
            float32 (len(texts), D), or (D) for a single text.

        Raises:
            InputError: a value is not possible, or a text is none.
        """
        single, texts = isinstance(texts, str), _texts(texts)
        if device is not None and str(pick_device(device)) != str(self.device):
            raise InputError(
                f"the model is on {self.device}; for another device: "
                f"Embedder({str(self.folder)!r}, device={device!r})"
            )
        if normalize is None:
            normalize = normalize_embeddings
        self._pooling(pooling)  # refused before texts are read
        ids = self.ids(texts, prompt)
        bar = show_progress_bar and progress is None
        with _bar(len(ids)) if bar else nullcontext(progress) as shown:
            out = self.encode_ids(
                ids,
                pooling=pooling,
                normalize=normalize,
                precision=precision,
                batch_tokens=batch_tokens,
                batch_size=batch_size,
                progress=shown,
            )
        found: Any = out
        if convert_to_tensor or not convert_to_numpy:
            import torch

            found = torch.from_numpy(out)
            found = found if convert_to_tensor or single else list(found)
        return found[0] if single else found

    __call__ = encode

    def ids(self, texts: Sequence[str], prompt: str | None = None) -> list[np.ndarray]:
        """The ids of each text with its special tokens, truncated to the limit.

        prompt: prepended to every text; by default as in the folder.
        """
        prompt = self.embedding_config.prompt if prompt is None else prompt
        most = self.builder.room + 1
        ids = self.builder.ids([prompt + text for text in texts], most)
        self.seen += len(ids)
        self.cut += sum(len(one) > self.builder.room for one in ids)
        return [self.builder.one(one) for one in ids]

    def encode_ids(
        self,
        ids: Sequence[np.ndarray],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        precision: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """One vector per sequence of ids with its special tokens; arguments as for ``encode``.

        Returns:
            float32 (len(ids), D).
        """
        pool = self._pooling(pooling)
        unit = self.embedding_config.normalize if normalize is None else normalize
        between(1, limits.BATCH_TOKENS, "[]")("batch_tokens", batch_tokens)
        if batch_size is not None:
            between(1, limits.BATCH_ROWS, "[]")("batch_size", batch_size)
        precision = pick_precision(precision, self._device) if precision else self.precision
        if precision != "float32" and not self.engine.packed:
            raise InputError(f"the engine {self.engine.name} computes in float32, not {precision}")
        out = np.empty((len(ids), self.size), dtype=np.float32)
        done = 0
        lengths = np.asarray([len(i) for i in ids], dtype=np.int64)
        # The longest first: if memory does not suffice, it fails at once.
        order = np.argsort(-lengths, kind="stable")
        for chosen in _batches(order, lengths.tolist(), batch_tokens, batch_size):
            vectors = self._network.vectors([ids[i] for i in chosen], pool, precision)  # (B, D)
            if unit:
                lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
                vectors = vectors / np.maximum(lengths, 1e-12)
            out[chosen] = vectors
            done += len(chosen)
            if progress is not None:
                progress(done)
        return out

    def token_vectors(self, ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The vector of each token of sequences of ids: float32 (tokens, D) each."""
        ends = np.cumsum([len(one) for one in ids])[:-1]
        return np.split(self._network.token_vectors(ids), ends)

    def encode_query(self, texts: Any, **options: Any) -> Any:
        """``encode`` with the folder's prompt for queries, if it has one."""
        return self._encode_as(("query",), texts, options)

    def encode_document(self, texts: Any, **options: Any) -> Any:
        """``encode`` with the folder's prompt for documents, if it has one."""
        return self._encode_as(("document", "passage", "corpus"), texts, options)

    def _encode_as(self, names: Sequence[str], texts: Any, options: dict[str, Any]) -> Any:
        prompts = self.embedding_config.prompts
        prompt = next((prompts[name] for name in names if name in prompts), None)
        return self.encode(texts, **{"prompt": prompt, **options})

    def similarity(self, one: Any, two: Any) -> "Tensor":
        """Cosines of vectors, as in sentence-transformers.

        Args:
            one, two: (N, D) and (M, D), or (D): arrays or tensors.

        Returns:
            float32 (N, M).
        """
        import torch

        a, b = (
            torch.nn.functional.normalize(torch.atleast_2d(torch.as_tensor(x).float()), dim=-1)
            for x in (one, two)
        )
        return a @ b.T

    def get_sentence_embedding_dimension(self) -> int:
        """``size``, by the name that sentence-transformers has for it."""
        return self.size

    def stream(
        self, texts: Iterable[str], *, progress: Progress | None = None, **options: Any
    ) -> Iterator[np.ndarray]:
        """Vectors of texts that need not fit in memory, in their order.

        Args:
            texts: any number.
            progress, options: as in ``encode``.

        Returns:
            One matrix for some thousand texts at a time.
        """
        done = 0
        for block in in_blocks(texts):
            shown = None if progress is None else after(done, progress)
            yield self.encode(block, progress=shown, **options)
            done += len(block)

    def warning(self) -> str | None:
        """A warning about truncated texts, if there were any."""
        if not self.cut:
            return None
        return (
            f"warning: {self.cut:,} of {self.seen:,} texts are longer than {self.max_length} "
            "tokens and are cut there"
        )

    def _pooling(self, name: str | None) -> str:
        pooling = name or self.embedding_config.pooling
        if pooling in POOLINGS:
            return pooling
        where = "" if name else f"{self.folder}: its "
        raise InputError(f"{where}pooling {pooling!r} is not known; one of {', '.join(POOLINGS)}")

    def _limit(self, max_length: int | None) -> int | None:
        """Where texts are truncated, at most at the model's limit."""
        most = self.config.max_length
        if max_length is not None:
            between(3, most or limits.LENGTH, "[]")("max_length", max_length)
            return max_length
        default = self.embedding_config.max_length or self.tokenizer.max_length
        return min((limit for limit in (most, default) if limit is not None), default=None)


def in_blocks(texts: Iterable[T], size: Any = len) -> Iterator[list[T]]:
    """Split texts into the blocks that ``stream`` takes at a time.

    size: the number of characters of one.
    """
    return blocks(texts, BLOCK_TEXTS, BLOCK_CHARACTERS, size)


def after(done: int, progress: Progress) -> Progress:
    """A callback for the progress of a block that follows ``done`` texts."""
    return lambda count: progress(done + count)


def _texts(texts: Any) -> list[str]:
    """The texts of a list, an array or a Series, or of a single text."""
    if isinstance(texts, str):
        return [texts]
    if not is_list(texts):
        column = "; take a column of it" if is_table(texts) else ""
        raise InputError(
            f"texts are given as a list of texts, not as {type(texts).__name__}{column}"
        )
    found = items(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"texts[{number}] is {type(text).__name__}, not a text")
    return found


@contextmanager
def _bar(total: int) -> Iterator[Progress]:
    """A bar on the terminal, moved by the function that it gives."""
    from rich.progress import Progress as Bar

    with Bar(transient=True) as bar:
        task = bar.add_task("texts embedded", total=total)
        yield lambda done: bar.update(task, completed=done)


def _batches(
    order: np.ndarray, lengths: Sequence[int], tokens: int, most: int | None
) -> Iterator[np.ndarray]:
    """Batches by their tokens, of at most so many texts."""
    for chosen in batches_by_tokens(order, lengths, tokens):
        size = most or len(chosen)
        yield from (chosen[start : start + size] for start in range(0, len(chosen), size))
