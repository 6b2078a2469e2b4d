"""The encoder of a model folder for text vectors, run by torch on packed batches, and the check
whether bfloat16 agrees with float32, which needs a processor with native bfloat16 products.

T tokens, B sequences, D hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.batch import Batch, pack
from ownbert.batches.example import Example, batches_by_tokens
from ownbert.checkpoint import Description, describe, load, load_tokenizer
from ownbert.checkpoint.description import VECTORS, record_agreement
from ownbert.language.messages import Message, sentences
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.output_heads import POOLINGS
from ownbert.nn.prepack import prepack
from ownbert.text.styles import InputFormat
from ownbert.text.tokenizer import NO_LIMIT
from ownbert.train.device import pick_device


class PackedEncoder:
    """The encoder of a folder without its heads.

    ``precision`` is the default for calls. ``format`` determines token types; by default they are
    all 0.
    """

    def __init__(
        self,
        folder: Path | Description,
        device: str,
        precision: str,
        format: InputFormat | None = None,
    ) -> None:
        self.model = load(folder, heads=(), pooler=False).to(pick_device(device))
        self.precision = precision
        # Token types matter even for a single text if its last token has its own type.
        segments = self.model.config.positions.segments
        self.format = format if segments else None
        self.layers = False
        self._encoders: dict[str, Encoder] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encoders": {}}  # created again: they would double a pickle

    def to(self, device: torch.device) -> None:
        self.model.to(device)
        self._encoders.clear()

    @torch.inference_mode()
    def vectors(
        self, ids: Sequence[np.ndarray], pooling: str, precision: str | None = None
    ) -> np.ndarray:
        """Vectors of sequences of ids: float32 (B, D), or (B, (L + 1) D) with all ``layers``."""
        pool = POOLINGS[pooling](self.model.config)
        if not self.layers:
            hidden, batch = self._hidden(ids, precision)
            return pool(hidden, batch.layout).cpu().numpy()
        encoder, batch = self._encoder(precision or self.precision), self._batch(ids)
        _, states = encoder(batch, keep_hidden=True)
        norm = encoder.norm or torch.nn.Identity()  # applied to the last layer
        pooled = [pool(norm(state).float(), batch.layout) for state in states]
        return torch.cat(pooled, -1).cpu().numpy()

    @torch.inference_mode()
    def token_vectors(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """The concatenated vectors of all tokens: float32 (T, D)."""
        return self._hidden(ids, None)[0].cpu().numpy()

    def _hidden(self, ids: Sequence[np.ndarray], precision: str | None) -> tuple[Tensor, Batch]:
        """The last hidden states of a batch of sequences: float32 (T, D)."""
        encoder, batch = self._encoder(precision or self.precision), self._batch(ids)
        hidden, _ = encoder(batch)  # (T, D)
        return hidden.float(), batch

    def _batch(self, ids: Sequence[np.ndarray]) -> Batch:
        return pack([Example(i, self._types(i)) for i in ids]).to(self.model.device)

    def _types(self, ids: np.ndarray) -> np.ndarray:
        types = np.zeros_like(ids)
        if self.format is not None:
            types[:] = self.format.types(len(ids))
        return types

    def _encoder(self, precision: str) -> Encoder:
        if precision not in self._encoders:
            self._encoders[precision] = prepack(self.model.encoder, precision)
        return self._encoders[precision]


# Minimum cosine between a text's vectors in both precisions.
_COSINE = 0.999
# Minimum and maximum number of compared texts, and maximum number of their tokens.
_LEAST_TEXTS, MOST_TEXTS, _MOST_TOKENS = 10, 256, 16_384
COMMANDS = "The commands `ownbert predict` and `evaluate`"
_BFLOAT16 = "bfloat16 if the processor supports it."
# Sentence in the card of an ensemble.
EACH_AGREES = sentences(
    ("Each of these models agrees with float32 in bfloat16.", f"{COMMANDS} use {_BFLOAT16}")
)


@dataclass(frozen=True)
class PrecisionCheck:
    """The result of comparing bfloat16 with float32.

    Args:
        what: compared outputs, ``ANSWERS`` or ``VECTORS``.
        agree: whether bfloat16 may be used.
        finding: sentence for the model card.
        commands: commands that the finding applies to, for the model card.
    """

    what: str
    agree: bool
    finding: str
    commands: str = COMMANDS

    def record(self, folder: Path) -> None:
        """Record agreement in config.json of a finished folder."""
        if self.agree:
            record_agreement(folder, self.what)

    def sentences(self) -> str:
        ending = "s" if self.commands.startswith("The command ") else ""
        does = f"use{ending} {_BFLOAT16}" if self.agree else f"use{ending} float32."
        return sentences((self.finding, f"{self.commands} {does}"))


def check_vectors(folder: Path, texts: Sequence[np.ndarray]) -> PrecisionCheck | None:
    """Compare the vectors of ``embed`` in bfloat16 with those in float32, for texts given as ids
    without special tokens; None if there are too few."""
    description = describe(folder)
    tokenizer = load_tokenizer(description)
    limits = (description.config.max_length, tokenizer.max_length)
    most = min((limit for limit in limits if limit is not None), default=NO_LIMIT)
    format, ids, tokens = tokenizer.input_format, [], 0
    for text in texts[:MOST_TEXTS]:
        ids.append(np.asarray(format.one(text[: most - format.special()].tolist()), dtype=np.int64))
        tokens += len(ids[-1])
        if tokens >= _MOST_TOKENS:
            break
    if len(ids) < _LEAST_TEXTS:
        return None
    encoder = PackedEncoder(description, "cpu", "float32", format)
    lengths = [*map(len, ids)]
    vectors = [
        [encoder.vectors([ids[i] for i in chosen], "mean", p) for p in ("float32", "bfloat16")]
        for chosen in batches_by_tokens(np.argsort(lengths, kind="stable"), lengths)
    ]
    fine, rough = (np.concatenate(batches) for batches in zip(*vectors, strict=True))
    return of_cosines(fine, rough, "The command `ownbert embed`")


def of_cosines(fine: np.ndarray, rough: np.ndarray, commands: str) -> PrecisionCheck:
    """The result for two vectors of each text, (N, D)."""
    norms = np.linalg.norm(fine, axis=-1) * np.linalg.norm(rough, axis=-1)
    least = float(((fine * rough).sum(-1) / np.maximum(norms, 1e-12)).min())
    finding = Message(
        "In bfloat16, the vectors of {count:,} texts have cosines of at least "
        "{least:.5f} with those in float32.",
        *(len(fine), least),
    )
    return PrecisionCheck(VECTORS, least >= _COSINE, finding, commands)
