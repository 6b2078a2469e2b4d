"""Runs an exported file on packed rows; sequences are padded only for the engine.

T tokens, B sequences, S longest sequence of a group, D hidden.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from ownbert.batches.example import Example, padded, split_sequences
from ownbert.checks import anything, record
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HEADS
from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json
from ownbert.inference.engines import Choice, ExportedFile, first_line, missing_output

CRF = "crf.json"
HIDDEN, LOGITS = "last_hidden_state", "logits"
# Output of models with heads for masked words and for sentence pairs.
MASKS_OF_BOTH = "prediction_logits"
# Sequences are grouped by length and padded to the longest of the group. Padding may be this share
# of the group's positions, or a few positions, which cost less than another call.
_PADDING, _FEW_PLACES = 0.1, 16
# Maximum positions of a group, limited by the processor's cache.
_MOST_PLACES = 4096
# Maximum tokens for which an engine is faster on several texts than packed batches of torch; on a
# single text it always is (docs/deployment.md).
FEW_TOKENS = 48
# Totals of this process: tokens and padding positions run by engines.
ENGINE_POSITIONS = Counter(tokens=0, padding=0)
_CRF = record(dict.fromkeys(("transitions", "start_transitions", "end_transitions"), anything))


class ExportedNetwork:
    """An exported file as a ``RowNetwork`` and as the encoder of an ``Embedder``.

    Args:
        pooling: mean, first or max; for embedding heads, whose files output token vectors.
        masks: name of the output with logits of the whole vocabulary.
    """

    def __init__(
        self,
        exported: ExportedFile,
        config: EncoderConfig,
        pooling: str = "mean",
        masks: str = LOGITS,
    ) -> None:
        self.exported, self.config, self.pooling, self.masks = exported, config, pooling, masks
        self._run = exported.open()

    def __getstate__(self) -> dict[str, Any]:
        # Engine sessions cannot be pickled or copied; the file is opened again.
        return {name: value for name, value in self.__dict__.items() if name != "_run"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._run = self.exported.open()

    @cached_property
    def crf(self) -> Any:
        """See ``RowNetwork``."""
        path = self.exported.folder / CRF
        if not path.is_file():
            return None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            values = read_json(path, check=_CRF)
            arrays = {name: np.asarray(value, np.float32) for name, value in values.items()}
            size = len(arrays["start_transitions"])
            shapes = {"transitions": (size, size), "end_transitions": (size,)}
            if all(arrays[name].shape == shape for name, shape in shapes.items()):
                return SimpleNamespace(**arrays)
        raise InputError("{path} is damaged; write it again: ownbert export", path)

    def logits(self, examples: Sequence[Example], head: str) -> np.ndarray:
        """See ``RowNetwork``."""
        ids, types = split_sequences(examples)
        if head == "embedding":
            return self._pooled(ids, types, self.pooling)
        kind, choices = HEADS[head], head == "choice"
        return self._packed(ids, types, kind.exported, per_token=kind.per_token, choices=choices)

    def likeliest(
        self, examples: Sequence[Example], known: np.ndarray, top: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See ``PackedNetwork``; the file computes logits for all tokens, not only for masks."""
        scores = self._masked_scores(examples)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares = shares[:, known] / shares.sum(1, keepdims=True)
        best = np.argpartition(-shares, min(top, len(known)) - 1, axis=1)[:, :top]
        order = np.argsort(-np.take_along_axis(shares, best, 1), 1, kind="stable")
        best = np.take_along_axis(best, order, 1)
        return np.take_along_axis(shares, best, 1), known[best]

    def surprisals(self, examples: Sequence[Example]) -> np.ndarray:
        """See ``PackedNetwork``."""
        scores = self._masked_scores(examples)
        scores -= scores.max(1, keepdims=True)
        ids = np.concatenate([np.asarray(e.masked_ids) for e in examples])
        return np.log(np.exp(scores).sum(1)) - scores[np.arange(len(ids)), ids]

    def _masked_scores(self, examples: Sequence[Example]) -> np.ndarray:
        """The logits of masked positions, (M, V)."""
        ids, types = split_sequences(examples)
        masked = [example.masked_positions for example in examples]
        return self._packed(ids, types, (self.masks,), per_token=True, rows=masked)

    def vectors(
        self, ids: Sequence[np.ndarray], pooling: str, precision: str | None = None
    ) -> np.ndarray:
        """Vectors (B, D) of sequences of ids, always in float32."""
        return self._pooled(ids, None, pooling)

    def token_vectors(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """The concatenated token vectors of all sequences: (T, D)."""
        return self._packed(ids, None, (HIDDEN,), per_token=True)

    def _pooled(
        self, ids: Sequence[np.ndarray], types: Sequence[np.ndarray] | None, pooling: str
    ) -> np.ndarray:
        hidden = self._packed(ids, types, (HIDDEN,), per_token=True)
        if len(ids) == 1 and pooling == "mean":
            return hidden.mean(0, keepdims=True)
        lengths = np.asarray([*map(len, ids)])
        starts = np.cumsum(lengths) - lengths
        if pooling == "first":
            return hidden[starts]
        if pooling == "max":
            return np.maximum.reduceat(hidden, starts, axis=0)
        return np.add.reduceat(hidden, starts, axis=0) / lengths[:, None].astype(np.float32)

    def _packed(
        self,
        ids: Sequence[np.ndarray],
        types: Sequence[np.ndarray] | None,
        names: Sequence[str],
        *,
        per_token: bool,
        choices: bool = False,
        rows: Sequence[Any] | None = None,
    ) -> np.ndarray:
        """Concatenated outputs of sequences: (T, ...) or (B, ...); several outputs become
        columns.

        ``rows`` are, for each sequence, the tokens whose outputs are wanted; by default all.
        """
        lengths = np.asarray([*map(len, ids)])
        results: list[Any] = [None] * len(ids)
        for chosen in groups_by_length(lengths):
            shape, segments = (len(chosen), int(lengths[chosen[-1]])), None
            if self.config.type_vocab_size > 1:
                segments = [0 if types is None else types[i] for i in chosen]
            inputs = padded([ids[i] for i in chosen], self.config.pad_token_id, segments)
            if choices:  # The graph scores choices independently.
                inputs = {name: x[None] for name, x in inputs.items()}
            out = self._outputs(inputs, names, shape if per_token else shape[:1])
            for row, index in enumerate(chosen):
                if rows is not None:
                    results[index] = out[row, rows[index]]
                else:
                    results[index] = out[row, : lengths[index]] if per_token else out[row : row + 1]
        return np.concatenate(results)

    def _outputs(
        self, inputs: Mapping[str, np.ndarray], names: Sequence[str], shape: tuple[int, ...]
    ) -> np.ndarray:
        """The file's outputs (*shape, ...); several outputs become columns."""
        path = self.exported.path
        mask = inputs["attention_mask"]
        tokens = int(mask.sum())
        ENGINE_POSITIONS.update(tokens=tokens, padding=mask.size - tokens)
        try:
            outputs = self._run(inputs)
        except Exception as error:
            raise InputError(
                "{path} cannot be run with {engine}: {first_line}",
                path,
                self.exported.engine,
                first_line(error),
            ) from None
        if missing := [name for name in names if name not in outputs]:
            raise missing_output(path, missing[0], outputs)
        arrays = [np.asarray(outputs[name], np.float32) for name in names]
        if names == (LOGITS,) and len(shape) == 1 and arrays[0].shape == (1, *shape):
            arrays = [arrays[0].T]  # multiple choice
        if any(x.shape[: len(shape)] != shape for x in arrays):
            raise InputError("{path} gives outputs of another shape; write it again", path)
        out = arrays[0] if len(arrays) == 1 else np.stack(arrays, -1)
        if not np.isfinite(out).all():
            raise InputError("{path} returns numbers that are not finite; it is damaged", path)
        return out


def groups_by_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield groups of indices of sequences with similar lengths (B), shortest first, with little
    padding."""
    order = np.argsort(lengths, kind="stable")
    start = tokens = 0
    for end, index in enumerate(order):
        places = (end - start + 1) * int(lengths[index])
        padding = places - tokens - int(lengths[index])
        if end > start and (places > _MOST_PLACES or padding > max(_FEW_PLACES, _PADDING * places)):
            yield order[start:end]
            start, tokens = end, 0
        tokens += int(lengths[index])
    if start < len(order):
        yield order[start:]


class RoutedNetwork:
    """Uses an engine for single texts or few tokens, and the packed model for the rest.

    The packed model is loaded on first use.
    """

    def __init__(self, small: ExportedNetwork, make: Callable[[], Any]) -> None:
        self._small, self._make = small, make

    @cached_property
    def _packed(self) -> Any:
        return self._make()

    @property
    def crf(self) -> Any:
        """See ``RowNetwork``."""
        return self._small.crf

    def _network_for(self, ids: Sequence[np.ndarray], *, masks: bool = False) -> Any:
        # For masks an engine computes logits of every token, which is slow for long texts.
        few = (len(ids) <= 1 and not masks) or sum(map(len, ids)) <= FEW_TOKENS
        return self._small if few else self._packed

    # See ``RowNetwork``, ``PackedNetwork`` and ``PackedEncoder``.

    def logits(self, examples: Sequence[Example], head: str) -> np.ndarray:
        return self._network_for([e.token_ids for e in examples]).logits(examples, head)

    def likeliest(self, examples: Sequence[Example], known: np.ndarray, top: int) -> Any:
        network = self._network_for([e.token_ids for e in examples], masks=True)
        return network.likeliest(examples, known, top)

    def surprisals(self, examples: Sequence[Example]) -> np.ndarray:
        return self._network_for([e.token_ids for e in examples], masks=True).surprisals(examples)

    def vectors(
        self, ids: Sequence[np.ndarray], pooling: str, precision: str | None = None
    ) -> np.ndarray:
        return self._network_for(ids).vectors(ids, pooling, precision)

    def token_vectors(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        return self._network_for(ids).token_vectors(ids)


def network_of(
    choice: Choice, config: EncoderConfig, packed: Callable[[], Any], **options: Any
) -> Any:
    """The network for a choice of engines: ``packed`` loads the torch network; the other options
    are those of ``ExportedNetwork``."""
    if choice.exported is None:
        return packed()
    exported = ExportedNetwork(choice.exported, config, **options)
    return RoutedNetwork(exported, packed) if choice.packed else exported
