"""Texts to embedding vectors, many at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ownbert import limits
from ownbert.batches.by_tokens import batches_by_tokens
from ownbert.checkpoint import Description, describe, load_tokenizer
from ownbert.checks import between, known
from ownbert.errors import InputError, warn_of_input
from ownbert.files import refuse_same
from ownbert.inference.compute import Compute
from ownbert.inference.embedding.embedding_outputs import (
    FORMS,
    SENTENCES,
    TOKENS,
    as_asked,
    as_tensor,
    of_length_one,
    padded,
    shortened,
)
from ownbert.inference.embedding.embedding_pool import EmbeddingPool, usual_devices
from ownbert.inference.embedding.similarity import (
    COSINE,
    SIMILARITIES,
    pairwise_similarity,
    similarity,
)
from ownbert.inference.engines import choose_engine
from ownbert.inference.exported_network import HIDDEN, network_of
from ownbert.inference.finished_files import copy_files, finished_files
from ownbert.tables.memory import is_list, is_table, items
from ownbert.tasks.forward.batched_forward import blocks
from ownbert.tasks.sentence_embedding.embedding_config import (
    POOLINGS,
    read_embedding_config,
    write_changes,
)
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.text.tokenizer import NO_LIMIT
from ownbert.train.device import PRECISIONS, pick_device, pick_precision

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int], None]
T = TypeVar("T")

BATCH_TOKENS = 4096
# Texts and characters that ``stream`` takes at a time: enough that, sorted by length, the texts of
# a batch have similar lengths, and some ten megabytes at most.
BLOCK_TEXTS, BLOCK_CHARACTERS = 8192, 8_000_000
# Prompts that every model has.
_PROMPTS = {"query": "", "document": ""}


class Embedder:
    """A model folder, ready to turn texts into embedding vectors, as a SentenceTransformer is.

    The files of sentence-transformers in it (modules.json and those it names) determine the
    pooling, whether vectors are normalized, and where texts are truncated. Without them the vector
    is the mean over all tokens, and texts are truncated at the model's limit.

    Args:
        folder: of the model, or its description.
        device: auto (default), cpu or cuda.
        precision: float32 (default), bfloat16, or auto for the faster one. With float32 a vector
            does not depend on the other texts, whatever the folder says of bfloat16.
        max_length: where texts are truncated instead, in tokens including special ones.
        engine: torch, onnx, openvino or auto (``choose_engine``).
        prompts: what may be prepended to texts, by name, besides the folder's or instead of them.
        default_prompt_name: of the prompt of texts that are given without one; by default as in
            the folder.
        similarity_fn_name: cosine, dot, euclidean or manhattan; by default as in the folder, or
            cosine.
        truncate_dim: how many numbers of each vector are kept, from the first.

    Attributes:
        engine: what computes.
        prompts, default_prompt_name, similarity_fn_name, truncate_dim, max_length: may be set.
        seen: how many texts there were.
        cut: how many of them were truncated.

    Raises:
        InputError: a folder or a value cannot be used.
    """

    def __init__(
        self,
        folder: str | Path | Description,
        *,
        device: Any = None,
        precision: str | None = None,
        max_length: int | None = None,
        engine: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        description = describe(folder)
        assert description.folder is not None
        self.folder, self.config = description.folder, description.config
        self.embedding_config = known = read_embedding_config(self.folder)
        self._device, precision = str(device or "auto"), precision or "float32"
        compute = Compute(self._device, precision, engine)
        self.engine = choose_engine(description, compute, (HIDDEN,))
        self.device = pick_device(self._device) if self.engine.exported is None else "cpu"
        packed = self.engine.packed
        self.precision = pick_precision(precision, self._device) if packed else "float32"
        self.tokenizer = load_tokenizer(description)
        self._network = network_of(self.engine, self.config, partial(self._packed, description))
        self.max_length = max_length
        self.prompts = {**_PROMPTS, **known.prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name or known.default_prompt_name
        self._prompt()  # refused before texts are there
        self.similarity_fn_name = similarity_fn_name or known.similarity or COSINE
        self.truncate_dim = truncate_dim
        self.seen = self.cut = 0

    def _packed(self, description: Description) -> Any:
        from ownbert.run.packed_encoder import PackedEncoder

        given = (description, self._device, self.precision, self.tokenizer.input_format)
        return PackedEncoder(*given)

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
        """How many numbers a vector of the model has, D."""
        return self.config.hidden_size

    def get_sentence_embedding_dimension(self) -> int:
        """How many numbers a vector of ``encode`` has: D, or ``truncate_dim`` if that is less."""
        return min(self.size, self.truncate_dim or self.size)

    get_embedding_dimension = get_sentence_embedding_dimension

    @property
    def max_length(self) -> int | None:
        """Where texts are truncated, in tokens including special ones; None: nowhere."""
        return self._max_length

    @max_length.setter
    def max_length(self, value: int | None) -> None:
        self._max_length = self._limit(value)
        self.builder = TextInputBuilder(self.tokenizer, self.config, self._max_length or NO_LIMIT)

    max_seq_length = max_length  # of sentence-transformers

    def get_max_seq_length(self) -> int | None:
        """``max_length``."""
        return self.max_length

    @property
    def similarity_fn_name(self) -> str:
        """The function by which ``similarity`` compares vectors."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        name = getattr(name, "value", name)  # sentence-transformers has an enumeration
        known(*SIMILARITIES)("similarity_fn_name", name)
        self._similarity_fn_name = name

    def to(self, device: Any) -> "Embedder":
        """Move the model to cpu or cuda.

        Raises:
            InputError: there is no such device, or an exported file computes.
        """
        target = pick_device(str(device))
        if self.engine.exported is not None and target.type != "cpu":
            raise InputError(f"the engine {self.engine.name} computes on cpu, not on {device}")
        if str(target) != str(self.device):
            self._device, self.device = str(device), target
            self._network.to(target)
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Copy the files of the folder that are needed to use it, and write what was set since:
        prompts, the similarity and where texts are truncated.

        Raises:
            InputError: it is the folder itself, or a link in it leaves it.
        """
        refuse_same(self.folder, folder)
        copy_files(self.folder, Path(folder), finished_files(self.folder))
        known, own = self.embedding_config, self.similarity_fn_name
        own_length = self.max_length != self._limit(None)
        changed = replace(
            known,
            default_prompt_name=self.default_prompt_name,
            similarity=own if own != COSINE or known.similarity else None,
            max_length=self.max_length if own_length else known.max_length,
        )
        if self.prompts != {**_PROMPTS, **known.prompts}:
            changed = replace(changed, prompts=self.prompts)
        write_changes(Path(folder), changed)

    save = save_pretrained  # of sentence-transformers

    def encode(
        self,
        sentences: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = SENTENCES,
        precision: str | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: EmbeddingPool | None = None,
        chunk_size: int | None = None,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_tokens: int = BATCH_TOKENS,
        progress: Progress | None = None,
        task: str | None = None,
        inputs: Any = None,
        texts: Any = None,
    ) -> Any:
        """One vector per text, in their order; an empty text has one too.

        The arguments that can be given by their places are those of sentence-transformers.

        Args:
            sentences, inputs, texts: a list, an array or a Series of texts, or a single text, by
                one of these names.
            prompt_name: of the prompt that is prepended to every text; by default as in the folder.
            prompt: the prompt itself.
            batch_size: the most texts in one forward pass; by default only ``batch_tokens`` counts.
            show_progress_bar: whether there is a bar.
            output_value: sentence_embedding; token_embeddings for the vectors of all tokens; or
                None for a mapping of both and of what the model reads.
            precision: int8, uint8, binary or ubinary for vectors as bytes or bits (``stored``); or
                float32, bfloat16, auto, in which the model computes, instead of the embedder's.
            convert_to_numpy: False: a list of tensors.
            convert_to_tensor: one tensor instead of an array.
            device: where the model computes from now on; several in a list: a process on each.
            normalize_embeddings: vectors of length one, also where the folder says nothing of it.
            truncate_dim: how many numbers of each vector are kept; by default the embedder's.
            pool: processes of ``start_multi_process_pool`` that compute.
            chunk_size: texts that one of these takes at a time.
            pooling: mean, first or max over the tokens, special ones included; by default as in the
                folder.
            normalize: whether vectors have length one, whatever the folder says.
            batch_tokens: tokens in one forward pass; a longer text is a batch by itself.
            progress: called with the number of texts so far.
            task: for routed models of sentence-transformers, which are refused; has no effect.

        Returns:
            float32 (len(texts), D), or (D) for a single text; of no texts (0). The vectors of
            tokens are a list of tensors (tokens, D).

        Raises:
            InputError: a value is not possible, or a text is none.
        """
        given = next((each for each in (sentences, inputs, texts) if each is not None), None)
        single, given = isinstance(given, str), _texts(given)
        form = precision if precision in FORMS else None
        options: dict[str, Any] = {
            "output_value": output_value,
            "pooling": pooling,
            "normalize": normalize_embeddings or normalize,
            "precision": None if form else precision,
            "batch_tokens": batch_tokens,
            "batch_size": batch_size,
            "truncate_dim": truncate_dim or self.truncate_dim,
        }
        self._refuse(**options)
        prompt = self._prompt(prompt, prompt_name)
        ids = self.ids(given, prompt)
        bar = show_progress_bar and progress is None
        with _bar(len(ids)) if bar else nullcontext(progress) as shown:
            if ids and (pool is not None or isinstance(device, list | tuple)):
                found = self._spread(ids, pool, device, chunk_size, shown, options)
            else:
                if device is not None and not isinstance(device, list | tuple):
                    self.to(device)
                found = self.outputs(ids, progress=shown, **options)
        if output_value == SENTENCES:
            how = {"tensor": convert_to_tensor, "arrays": convert_to_numpy}
            found = as_asked(found, form, self.device, **how)
        elif output_value == TOKENS:
            found = [as_tensor(each, self.device) for each in found]
        else:
            found = [self._mapping(*each, prompt) for each in zip(ids, found, strict=True)]
        return found[0] if single else found

    __call__ = encode

    def _refuse(self, **options: Any) -> None:
        """Raise ``InputError`` for options of ``encode`` that are not possible, before texts are
        read."""
        self._pooling(options["pooling"])
        if options["output_value"] not in (SENTENCES, TOKENS, None):
            raise InputError(
                f"output_value {options['output_value']!r} is not known; one of {SENTENCES}, "
                f"{TOKENS}, None"
            )
        if options["precision"] not in (None, *PRECISIONS):
            known = ", ".join((*PRECISIONS, *FORMS))
            raise InputError(f"precision {options['precision']!r} is not known; one of {known}")
        if options["truncate_dim"] is not None:
            between(1, limits.WIDTH, "[]")("truncate_dim", options["truncate_dim"])

    def outputs(
        self,
        ids: Sequence[np.ndarray],
        *,
        output_value: str | None,
        truncate_dim: int | None,
        **options: Any,
    ) -> Any:
        """What ``encode`` gives of sequences of ids: vectors (N, D), a list of the vectors of
        tokens, or a list of both. The other arguments are as for ``encode_ids``."""
        if output_value == TOKENS:
            return self.token_vectors(ids)
        vectors = self.encode_ids(ids, **options)
        vectors = shortened(vectors, truncate_dim, unit=bool(options["normalize"]))
        if output_value == SENTENCES:
            return vectors
        return list(zip(self.token_vectors(ids), vectors, strict=True))

    def _spread(
        self,
        ids: Sequence[np.ndarray],
        pool: EmbeddingPool | None,
        devices: Any,
        chunk_size: int | None,
        progress: Progress | None,
        options: dict[str, Any],
    ) -> Any:
        """``outputs``, from several processes."""
        if chunk_size is not None:
            between(1, limits.COUNT, "[]")("chunk_size", chunk_size)
        with nullcontext(pool) if pool else EmbeddingPool(self, devices) as processes:
            parts = processes.outputs(ids, chunk_size, options, progress)
        if options["output_value"] == SENTENCES:
            return np.concatenate(parts)
        return [each for part in parts for each in part]

    def _mapping(
        self, ids: np.ndarray, vectors: tuple[np.ndarray, np.ndarray], prompt: str
    ) -> dict[str, Any]:
        """Ids, the vectors of the tokens and that of a text, by the names of
        sentence-transformers."""
        found: dict[str, Any] = {n: x[0] for n, x in padded([ids], self.builder).items()}
        for name, values in zip((TOKENS, SENTENCES), vectors, strict=True):
            found[name] = as_tensor(values, self.device)
        if prompt:
            own = self.builder.one(self.builder.ids([prompt])[0])
            found["prompt_length"] = len(own) - int(own[-1] == self.tokenizer.sep_id)
        return found

    def start_multi_process_pool(
        self, target_devices: Sequence[Any] | None = None
    ) -> EmbeddingPool:
        """Processes that ``encode`` can spread texts over, each with a copy of the model.

        target_devices: one for each process; by default all GPUs, else cpu four times.
        """
        return EmbeddingPool(self, target_devices or usual_devices())

    @staticmethod
    def stop_multi_process_pool(pool: EmbeddingPool) -> None:
        """End the processes of a pool."""
        pool.close()

    def tokenize(self, texts: Any) -> dict[str, Any]:
        """What the model reads of texts: tensors of Transformers' names, padded (N, S)."""
        return padded(self._sequences(_texts(texts)), self.builder)

    def _prompt(self, prompt: str | None = None, name: str | None = None) -> str:
        """The prompt itself, or that of a name; by default that of the folder."""
        if prompt is not None:
            if name is not None:
                warn_of_input("prompt_name has no effect beside prompt; leave one of them out")
            return prompt
        name = self.default_prompt_name if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            raise InputError(f"there is no prompt {name!r}; there is {', '.join(self.prompts)}")
        return self.prompts[name]

    def ids(self, texts: Sequence[str], prompt: str | None = None) -> list[np.ndarray]:
        """The ids of each text with its special tokens, truncated to the limit.

        prompt: prepended to every text; by default as in the folder.
        """
        prompt = self._prompt(prompt)
        if prompt and not self.embedding_config.pools_prompt:
            raise InputError(
                f"{self.folder}: the tokens of a prompt are left out of the pooling "
                "(include_prompt), which is not supported; take prompt=''"
            )
        return self._sequences([prompt + text for text in texts])

    def _sequences(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self.embedding_config.lowercase:
            texts = [text.lower() for text in texts]
        ids = self.builder.ids(texts, self.builder.room + 1)
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
            out[chosen] = of_length_one(vectors) if unit else vectors
            done += len(chosen)
            if progress is not None:
                progress(done)
        return out

    def token_vectors(self, ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The vector of each token of sequences of ids: float32 (tokens, D) each."""
        found: list[np.ndarray] = []
        lengths = [len(one) for one in ids]
        for chosen in _batches(np.arange(len(ids)), lengths, BATCH_TOKENS, None):
            ends = np.cumsum([lengths[i] for i in chosen])[:-1]
            found += np.split(self._network.token_vectors([ids[i] for i in chosen]), ends)
        return found

    def encode_query(
        self,
        sentences: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """``encode`` with the prompt for queries, if there is one."""
        prompts = self._prompt_for(("query",), prompt_name, prompt)
        return self.encode(sentences=sentences, task="query", **prompts, **options)

    def encode_document(
        self,
        sentences: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """``encode`` with the prompt for documents, if there is one."""
        prompts = self._prompt_for(("document", "passage", "corpus"), prompt_name, prompt)
        return self.encode(sentences=sentences, task="document", **prompts, **options)

    def _prompt_for(
        self, usual: Sequence[str], name: str | None, prompt: str | None
    ) -> dict[str, str | None]:
        """The prompt that was given or named, else the first of the usual names that is known."""
        if name is None and prompt is None:
            name = next((each for each in usual if each in self.prompts), None)
        return {"prompt_name": name, "prompt": prompt}

    def similarity(self, one: Any, two: Any) -> "Tensor":
        """Each vector with each, by ``similarity_fn_name``.

        Args:
            one, two: (N, D) and (M, D), or (D): arrays, tensors or lists of them.

        Returns:
            float32 (N, M).
        """
        return similarity(self.similarity_fn_name, one, two)

    def similarity_pairwise(self, one: Any, two: Any) -> "Tensor":
        """Each vector with the one in its place: (N, D) and (N, D) to float32 (N)."""
        return pairwise_similarity(self.similarity_fn_name, one, two)

    @contextmanager
    def truncate_sentence_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Another ``truncate_dim`` for a while."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

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
