"""Embeds texts in batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ownbert import limits
from ownbert.batches.example import batches_by_tokens
from ownbert.checkpoint import Description, describe, load_tokenizer
from ownbert.checks import between, known, maybe
from ownbert.exceptions import InputError, named_repr, warn_of_input
from ownbert.files.input_files import refuse_same
from ownbert.inference.embedding_outputs import (
    COSINE,
    FORMS,
    SENTENCES,
    SIMILARITIES,
    TOKENS,
    EmbeddingPool,
    as_tensor,
    model_inputs,
    of_length_one,
    shortened,
    stored,
)
from ownbert.inference.engines import Compute, Progress, choose_engine
from ownbert.inference.exported_network import HIDDEN, network_of
from ownbert.inference.finished_files import copy_files, finished_files
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.memory import is_list, is_table, items
from ownbert.tasks.embedding_config import POOLINGS, read_embedding_config, write_changes
from ownbert.tasks.row_network import blocks
from ownbert.tasks.text_input import TextInputBuilder, UnknownWords, truncation_warning
from ownbert.text.tokenizer import NO_LIMIT
from ownbert.train.device import PRECISIONS, pick_device, pick_precision

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter


T = TypeVar("T")
# Maximum tokens per forward pass. A GPU takes 3 to 5 times as long with batches of 4,096
# (docs/lab/machine.md).
_BATCH_TOKENS, _BATCH_TOKENS_ON_GPU = 4096, 32_768
# Texts and characters per block of ``stream``: enough for batches of texts of similar lengths after
# sorting, and at most some ten megabytes.
BLOCK_TEXTS, BLOCK_CHARACTERS = 8192, 8_000_000
# Prompts that every model has.
_PROMPTS = {"query": "", "document": ""}


class Evaluations(dict[str, dict[str, float]]):
    """Metrics that evaluators of sentence-transformers leave, in place of its model card."""

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: Mapping[str, float], *_: Any, **__: Any
    ) -> None:
        """Called by an evaluator with its metrics, and its epoch and step."""
        name = getattr(evaluator, "name", "") or type(evaluator).__name__
        self[name] = dict(metrics)


class Embedder:
    """A model folder that embeds texts, compatible with SentenceTransformer.

    The sentence-transformers files in the folder (modules.json and files named there) determine
    pooling, normalization and truncation. Without them a vector is the mean over all tokens, and
    texts are truncated at the model's limit.

    Args:
        folder: model folder, or its description.
        device: auto (default), cpu or cuda.
        precision: float32 (default), bfloat16, or auto for the faster one. In float32 a vector
            does not depend on the other texts of the batch.
        max_length: maximum tokens per text including special tokens, instead of the folder's.
        engine: torch, onnx, openvino or auto (``choose_engine``).
        prompts: prompts by name, which extend or override the folder's.
        default_prompt_name: prompt for texts without one; by default as in the folder.
        similarity_fn_name: cosine, dot, euclidean or manhattan; by default as in the folder, or
            cosine.
        truncate_dim: number of leading dimensions of each vector to keep; by default as in the
            folder.

    Attributes:
        engine: name of the engine in use.
        prompts, default_prompt_name, similarity_fn_name, truncate_dim, max_length: settable.
        seen: number of texts so far.
        cut: number of truncated texts so far.
        model_card_data: metrics of the evaluators of sentence-transformers.
        training: false, as an embedder is always in evaluation mode.

    Raises:
        InputError: the folder or a value cannot be used.
    """

    training = False

    @in_float32
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
        self.embedding_config = folder_config = read_embedding_config(self.folder)
        self._device, precision = str(device or "auto"), precision or "float32"
        compute = Compute(self._device, precision, engine)
        self.engine = choose_engine(description, compute, (HIDDEN,))
        self.device = pick_device(self._device) if self.engine.exported is None else "cpu"
        packed = self.engine.packed
        self.precision = pick_precision(precision, self._device) if packed else "float32"
        self.tokenizer = load_tokenizer(description)
        self._network = network_of(self.engine, self.config, partial(self._packed, description))
        self.max_length = max_length
        self.prompts = {**_PROMPTS, **folder_config.prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name or folder_config.default_prompt_name
        self._prompt()  # reject an unknown prompt early
        self.similarity_fn_name = similarity_fn_name or folder_config.similarity or COSINE
        self.truncate_dim = folder_config.truncate_dim if truncate_dim is None else truncate_dim
        self.seen = self.cut = 0
        self.unknown = UnknownWords(self.tokenizer)
        self.model_card_data = Evaluations()

    def __repr__(self) -> str:
        return named_repr(self, self.folder, device=str(self.device), precision=self.precision)

    def _packed(self, description: Description) -> Any:
        from ownbert.run.packed_encoder import PackedEncoder

        return PackedEncoder(description, self._device, self.precision, self.tokenizer.input_format)

    def __fspath__(self) -> str:
        """The folder, so that functions that take a folder accept an embedder."""
        return str(self.folder)

    @property
    def model(self) -> Any:
        """The model if torch runs it; None with another engine."""
        return getattr(self._network, "model", None)

    def parameters(self) -> "Iterator[Parameter]":
        """The parameters of the model; none with another engine than torch."""
        return iter(()) if self.model is None else self.model.parameters()

    def eval(self) -> "Embedder":
        """No effect: an embedder is always in evaluation mode."""
        return self

    def train(self, mode: bool = True) -> "Embedder":
        """Only accepts False, which has no effect.

        Raises:
            InputError: training mode is requested.
        """
        if mode:
            raise InputError(
                "an Embedder is for inference; ownbert finetune embed trains its folder"
            )
        return self

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> "Embedder":
        """Same as ``Embedder(folder)``."""
        return cls(folder, **options)

    @property
    def size(self) -> int:
        """The model's vector size D."""
        return self.config.hidden_size

    def get_sentence_embedding_dimension(self) -> int:
        """The size of the vectors of ``encode``: D, or ``truncate_dim`` if it is smaller."""
        return min(self.size, self.truncate_dim or self.size)

    get_embedding_dimension = get_sentence_embedding_dimension

    @property
    def max_length(self) -> int | None:
        """Maximum tokens per text including special tokens; None: unlimited."""
        return self._max_length

    @max_length.setter
    def max_length(self, value: int | None) -> None:
        self._max_length = self._limit(value)
        self.builder = TextInputBuilder(self.tokenizer, self.config, self._max_length or NO_LIMIT)

    max_seq_length = max_length  # name in sentence-transformers

    def get_max_seq_length(self) -> int | None:
        """Same as ``max_length``."""
        return self.max_length

    @property
    def similarity_fn_name(self) -> str:
        """The name of the function used by ``similarity``."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        name = getattr(name, "value", name)  # an enumeration in sentence-transformers
        known(*SIMILARITIES)("similarity_fn_name", name)
        self._similarity_fn_name = name

    def to(self, device: Any) -> "Embedder":
        """Move the model to cpu or cuda."""
        target = pick_device(str(device))
        if self.engine.exported is not None and target.type != "cpu":
            raise InputError(
                "the engine {name} computes on the CPU, not on {device}", self.engine.name, device
            )
        if str(target) != str(self.device):
            self._device, self.device = str(device), target
            self._network.to(target)
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Copy the folder's files needed for inference, and write the current settings: prompts,
        similarity, vector size and maximum length.

        Raises:
            InputError: the target is the folder itself, or a link points outside the folder.
        """
        refuse_same(self.folder, folder)
        copy_files(self.folder, Path(folder), finished_files(self.folder))
        folder_config, similarity_name = self.embedding_config, self.similarity_fn_name
        own_length = self.max_length != self._limit(None)
        default = similarity_name == COSINE and not folder_config.similarity
        changed = replace(
            folder_config,
            default_prompt_name=self.default_prompt_name,
            similarity=None if default else similarity_name,
            max_length=self.max_length if own_length else folder_config.max_length,
            truncate_dim=self.truncate_dim,
        )
        if self.prompts != {**_PROMPTS, **folder_config.prompts}:
            changed = replace(changed, prompts=self.prompts)
        write_changes(Path(folder), changed)

    save = save_pretrained  # name in sentence-transformers

    @in_float32
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
        batch_tokens: int | None = None,
        progress: Progress | None = None,
        task: str | None = None,
        inputs: Any = None,
        texts: Any = None,
    ) -> Any:
        """Embed texts; the vectors are in the order of the texts, empty texts included.

        Positional arguments are in the order of sentence-transformers.

        Args:
            sentences, inputs, texts: a text, or a list, array or Series of texts, by any of these
                names.
            prompt_name: prompt to prepend to every text; by default as in the folder.
            prompt: text of the prompt itself.
            batch_size: maximum texts per forward pass; by default only ``batch_tokens`` limits it.
            show_progress_bar: whether to show a progress bar.
            output_value: sentence_embedding; token_embeddings for the vectors of all tokens; or
                None for a mapping of both and the model's inputs.
            precision: int8, uint8, binary or ubinary for quantized vectors (``stored``); or
                float32, bfloat16 or auto, the precision of the model for this call.
            convert_to_numpy: False: return a list of tensors.
            convert_to_tensor: return one tensor instead of an array.
            device: new device of the model; a list of devices: run one process on each.
            normalize_embeddings: scale vectors to unit length, even if the folder does not.
            truncate_dim: number of leading dimensions to keep; by default the embedder's.
            pool: processes started by ``start_multi_process_pool``.
            chunk_size: number of texts sent to a process at a time.
            pooling: mean, first or max over the tokens including special tokens; by default
                as in the folder.
            normalize: whether vectors have unit length, overriding the folder.
            batch_tokens: maximum tokens per forward pass, by default 4,096, or 32,768 on a GPU; a
                longer text is its own batch.
            progress: called with the number of texts so far.
            task: ignored; in sentence-transformers only for routed models, which are
                rejected.

        Returns:
            float32 (len(texts), D), or (D) for a single text; (0) for an empty list. Token
            vectors are a list of tensors (tokens, D).

        Raises:
            InputError: an argument is invalid, or an item is not a text.
        """
        given = next((value for value in (sentences, inputs, texts) if value is not None), None)
        single, given = isinstance(given, str), _texts(given)
        form = precision if precision in FORMS else None
        self._pooling(pooling)
        maybe(known(SENTENCES, TOKENS))("output_value", output_value)
        maybe(known(*PRECISIONS, *FORMS))("precision", precision)
        truncate_dim = self.truncate_dim if truncate_dim is None else truncate_dim
        maybe(between(1, limits.WIDTH, "[]"))("truncate_dim", truncate_dim)
        options: dict[str, Any] = {
            "output_value": output_value,
            "pooling": pooling,
            "normalize": normalize_embeddings or normalize,
            "precision": None if form else precision,
            "batch_tokens": batch_tokens,
            "batch_size": batch_size,
            "truncate_dim": truncate_dim,
        }
        prompt = self._prompt(prompt, prompt_name)
        ids = self.ids(given, prompt)
        bar = show_progress_bar and progress is None
        with _bar(len(ids)) if bar else nullcontext(progress) as callback:
            if ids and (pool is not None or isinstance(device, list | tuple)):
                with nullcontext(pool) if pool else EmbeddingPool(self, device) as processes:
                    outputs = processes.outputs(ids, chunk_size, options, callback)
            else:
                if device is not None and not isinstance(device, list | tuple):
                    self.to(device)
                outputs = self.outputs(ids, progress=callback, **options)
        if output_value == SENTENCES:
            if not ids:
                outputs = np.zeros(0, np.float32)
            elif form is not None:
                outputs = stored(outputs, form)
            if convert_to_tensor or not convert_to_numpy:
                outputs = as_tensor(outputs, self.device)
                outputs = outputs if convert_to_tensor else list(outputs)
        elif output_value == TOKENS:
            outputs = [as_tensor(vectors, self.device) for vectors in outputs]
        else:
            outputs = [self._mapping(*each, prompt) for each in zip(ids, outputs, strict=True)]
        return outputs[0] if single else outputs

    __call__ = encode

    def outputs(
        self,
        ids: Sequence[np.ndarray],
        *,
        output_value: str | None,
        truncate_dim: int | None,
        **options: Any,
    ) -> Any:
        """The results of ``encode`` for sequences of ids: vectors (N, D), a list of token
        vectors, or a list of both."""
        if output_value == TOKENS:
            return self.token_vectors(ids)
        vectors = self.encode_ids(ids, **options)
        vectors = shortened(vectors, truncate_dim, unit=bool(options["normalize"]))
        if output_value == SENTENCES:
            return vectors
        return list(zip(self.token_vectors(ids), vectors, strict=True))

    def _mapping(
        self, ids: np.ndarray, vectors: tuple[np.ndarray, np.ndarray], prompt: str
    ) -> dict[str, Any]:
        """Ids, token vectors and text vector, keyed by the names of sentence-transformers."""
        outputs: dict[str, Any] = {n: x[0] for n, x in model_inputs([ids], self.builder).items()}
        for name, values in zip((TOKENS, SENTENCES), vectors, strict=True):
            outputs[name] = as_tensor(values, self.device)
        if prompt:
            prompt_ids = self.builder.one(self.builder.ids([prompt])[0])
            outputs["prompt_length"] = len(prompt_ids) - int(
                prompt_ids[-1] == self.tokenizer.sep_id
            )
        return outputs

    def start_multi_process_pool(
        self, target_devices: Sequence[Any] | None = None
    ) -> EmbeddingPool:
        """Start processes for ``encode``, each with a copy of the model.

        Args:
            target_devices: device of each process; by default all GPUs, or four times cpu.
        """
        import torch

        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        return EmbeddingPool(self, target_devices or gpus or ["cpu"] * 4)

    @staticmethod
    def stop_multi_process_pool(pool: EmbeddingPool) -> None:
        """Stop the processes of a pool."""
        pool.close()

    def tokenize(self, texts: Any) -> dict[str, Any]:
        """The model's inputs for texts: tensors with Transformers' names, padded (N, S)."""
        return model_inputs(self._sequences(_texts(texts), ""), self.builder)

    def _prompt(self, prompt: str | None = None, name: str | None = None) -> str:
        """The given prompt, or the prompt with the name; by default the folder's."""
        if prompt is not None:
            if name is not None:
                warn_of_input("prompt_name has no effect together with prompt; omit one of them")
            return prompt
        name = self.default_prompt_name if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            raise InputError(
                "there is no prompt {name!r}; the model has {prompts}",
                name,
                ", ".join(self.prompts),
            )
        return self.prompts[name]

    def ids(self, texts: Sequence[str], prompt: str | None = None) -> list[np.ndarray]:
        """The ids of each text with special tokens, truncated to the limit."""
        return self._sequences(texts, self._prompt(prompt))

    def _sequences(self, texts: Sequence[str], prompt: str) -> list[np.ndarray]:
        read = self.embedding_config.texts(texts, prompt)
        ids = self.builder.ids(read, self.builder.room + 1)
        self.seen += len(ids)
        self.cut += sum(len(one) > self.builder.room for one in ids)
        sequences = [self.builder.one(one) for one in ids]
        self.unknown.count(sequences, texts)
        return sequences

    @in_float32
    def encode_ids(
        self,
        ids: Sequence[np.ndarray],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        precision: str | None = None,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Embed sequences of ids that include special tokens: float32 (len(ids), D); for the
        arguments see ``encode``."""
        pool = self._pooling(pooling)
        unit = self.embedding_config.normalize if normalize is None else normalize
        if batch_tokens is None:
            batch_tokens = self._default_tokens
        between(1, limits.BATCH_TOKENS, "[]")("batch_tokens", batch_tokens)
        maybe(between(1, limits.BATCH_ROWS, "[]"))("batch_size", batch_size)
        precision = pick_precision(precision, self._device) if precision else self.precision
        if precision != "float32" and not self.engine.packed:
            raise InputError(
                "the engine {name} computes in float32, not {precision}",
                self.engine.name,
                precision,
            )
        out = np.empty((len(ids), self.size), dtype=np.float32)
        done = 0
        lengths = np.asarray([len(i) for i in ids], dtype=np.int64)
        # Longest first: if memory does not suffice, the first batch fails.
        order = np.argsort(-lengths, kind="stable")
        for chosen in _batches(order, lengths.tolist(), batch_tokens, batch_size):
            vectors = self._network.vectors([ids[i] for i in chosen], pool, precision)  # (B, D)
            out[chosen] = of_length_one(vectors) if unit else vectors
            done += len(chosen)
            if progress is not None:
                progress(done)
        return out

    @in_float32
    def token_vectors(self, ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The token vectors of sequences of ids: float32 (tokens, D) each."""
        vectors: list[np.ndarray] = []
        lengths = [len(one) for one in ids]
        for chosen in _batches(np.arange(len(ids)), lengths, self._default_tokens, None):
            ends = np.cumsum([lengths[i] for i in chosen])[:-1]
            vectors += np.split(self._network.token_vectors([ids[i] for i in chosen]), ends)
        return vectors

    def encode_query(
        self,
        sentences: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """``encode`` with the prompt for queries, if there is one."""
        name = self._usual_prompt(prompt_name, prompt, "query")
        return self.encode(sentences, name, prompt, task="query", **options)

    def encode_document(
        self,
        sentences: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """``encode`` with the prompt for documents, if there is one."""
        name = self._usual_prompt(prompt_name, prompt, "document", "passage", "corpus")
        return self.encode(sentences, name, prompt, task="document", **options)

    def _usual_prompt(self, name: str | None, prompt: str | None, *usual: str) -> str | None:
        """The name, or without a prompt the first of the usual names that exists."""
        if name is not None or prompt is not None:
            return name
        return next((name for name in usual if name in self.prompts), None)

    @in_float32
    def similarity(self, one: Any, two: Any) -> "Tensor":
        """Similarities of all pairs of vectors, by ``similarity_fn_name``; distances are negated.

        Args:
            one: (N, D) or (D): array, tensor or list of them.
            two: (M, D) or (D), likewise.

        Returns:
            float32 (N, M).
        """
        import torch

        a, b = (torch.atleast_2d(vectors) for vectors in self._tensors(one, two))
        if self.similarity_fn_name in (COSINE, "dot"):
            return a @ b.T
        return -torch.cdist(a, b, p=2.0 if self.similarity_fn_name == "euclidean" else 1.0)

    @in_float32
    def similarity_pairwise(self, one: Any, two: Any) -> "Tensor":
        """Similarities of corresponding vectors: (N, D) and (N, D) to float32 (N)."""
        a, b = self._tensors(one, two)
        if self.similarity_fn_name in (COSINE, "dot"):
            return (a * b).sum(-1)
        return -(a - b).norm(p=2 if self.similarity_fn_name == "euclidean" else 1, dim=-1)

    def _tensors(self, *arrays: Any) -> list["Tensor"]:
        """Vectors in float32, scaled to unit length for cosine similarity."""
        import torch

        tensors = [
            torch.as_tensor(x if torch.is_tensor(x) else np.asarray(x)).float() for x in arrays
        ]
        if self.similarity_fn_name != COSINE:
            return tensors
        return [torch.nn.functional.normalize(x, dim=-1) for x in tensors]

    @contextmanager
    def truncate_sentence_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Use another ``truncate_dim`` inside the block."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    def stream(
        self, texts: Iterable[str], *, progress: Progress | None = None, **options: Any
    ) -> Iterator[np.ndarray]:
        """Embed texts that need not fit in memory, in their order.

        Args:
            texts: any number of texts, or a single one.
            progress: called with the number of texts so far.
            options: see ``encode``.

        Yields:
            A matrix for each block of some thousand texts.
        """
        done = 0
        for block in in_blocks([texts] if isinstance(texts, str) else texts):
            yield self.encode(block, progress=after(done, progress), **options)
            done += len(block)

    def warnings(self) -> Iterator[str]:
        """Warnings about truncated texts and unknown words, if there were any."""
        if self.cut:
            yield truncation_warning(
                self.cut, self.seen, Message("{max_length} tokens", self.max_length), "texts"
            )
        if warning := self.unknown.warning():
            yield warning

    @property
    def _default_tokens(self) -> int:
        """Default of the maximum tokens per forward pass."""
        on_gpu = str(self.device).startswith("cuda")
        return _BATCH_TOKENS_ON_GPU if on_gpu else _BATCH_TOKENS

    def _pooling(self, name: str | None) -> str:
        pooling = name or self.embedding_config.pooling
        known(*POOLINGS)("pooling" if name else f"{self.folder}: pooling", pooling)
        return pooling

    def _limit(self, max_length: int | None) -> int | None:
        """The maximum length, at most the model's limit."""
        most = self.config.max_length
        if max_length is not None:
            between(3, most or limits.LENGTH, "[]")("max_length", max_length)
            return max_length
        default = self.embedding_config.max_length or self.tokenizer.max_length
        return min((limit for limit in (most, default) if limit is not None), default=None)


def in_blocks(texts: Iterable[T], size: Any = len) -> Iterator[list[T]]:
    """Split texts into the blocks of ``stream``; ``size`` returns the number of characters of an
    item."""
    return blocks(texts, BLOCK_TEXTS, BLOCK_CHARACTERS, size)


def after(done: int, progress: Progress | None) -> Progress | None:
    """A progress callback for a block that is preceded by ``done`` texts."""
    return None if progress is None else lambda count: progress(done + count)


def _texts(texts: Any) -> list[str]:
    """The texts of a list, an array or a Series, or a single text, as a list."""
    if isinstance(texts, str):
        return [texts]
    if not is_list(texts):
        column = "; pass one of its columns" if is_table(texts) else ""
        raise InputError(
            "texts must be a list of texts, not {kind}{advice!t}", type(texts).__name__, column
        )
    text_list = items(texts)
    for number, text in enumerate(text_list):
        if not isinstance(text, str):
            raise InputError("texts[{number}] is {kind}, not a text", number, type(text).__name__)
    return text_list


@contextmanager
def _bar(total: int) -> Iterator[Progress]:
    """A progress bar on the terminal; yields the function that updates it."""
    from rich.progress import Progress as Bar

    with Bar(transient=True) as bar:
        task = bar.add_task("texts embedded", total=total)
        yield lambda done: bar.update(task, completed=done)


def _batches(
    order: np.ndarray, lengths: Sequence[int], tokens: int, most: int | None
) -> Iterator[np.ndarray]:
    """Batches limited by the number of tokens and the number of texts."""
    for chosen in batches_by_tokens(order, lengths, tokens):
        size = most or len(chosen)
        yield from (chosen[start : start + size] for start in range(0, len(chosen), size))
