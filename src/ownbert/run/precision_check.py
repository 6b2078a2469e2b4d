"""Checks whether a trained model's bfloat16 outputs agree with float32, for its config and card.

The check needs a processor with native bfloat16 products.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ownbert.batches.by_tokens import batches_by_tokens
from ownbert.checkpoint import describe, load_tokenizer
from ownbert.checkpoint.agreement import VECTORS, record_agreement
from ownbert.run.packed_encoder import PackedEncoder
from ownbert.text.tokenizer import NO_LIMIT

# Minimum cosine between a text's vectors in both precisions.
_COSINE = 0.999
# Minimum and maximum number of compared texts, and maximum number of their tokens.
_LEAST_TEXTS, MOST_TEXTS, _MOST_TOKENS = 10, 256, 16_384
COMMANDS = "The commands `ownbert predict` and `evaluate`"
_BFLOAT16 = "bfloat16 if the processor supports it."
# Sentence in the card of an ensemble.
EACH_AGREES = f"Each of these models agrees with float32 in bfloat16. {COMMANDS} use {_BFLOAT16}"


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
        """The sentences for the model card."""
        ending = "s" if self.commands.startswith("The command ") else ""
        does = f"use{ending} {_BFLOAT16}" if self.agree else f"use{ending} float32."
        return f"{self.finding} {self.commands} {does}"


def check_vectors(folder: Path, texts: Sequence[np.ndarray]) -> PrecisionCheck | None:
    """Compare the vectors of ``embed`` in bfloat16 with those in float32.

    Args:
        folder: folder of a pretrained model.
        texts: ids of each text without special tokens.

    Returns:
        The result, or None if there are too few texts.
    """
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
    fine, rough = (np.concatenate(each) for each in zip(*vectors, strict=True))
    return of_cosines(fine, rough, "The command `ownbert embed`")


def of_cosines(fine: np.ndarray, rough: np.ndarray, commands: str) -> PrecisionCheck:
    """The result for two vectors of each text, (N, D)."""
    norms = np.linalg.norm(fine, axis=-1) * np.linalg.norm(rough, axis=-1)
    least = float(((fine * rough).sum(-1) / np.maximum(norms, 1e-12)).min())
    finding = (
        f"In bfloat16, the vectors of {len(fine):,} texts have cosines of at least {least:.5f} "
        "with those in float32."
    )
    return PrecisionCheck(VECTORS, least >= _COSINE, finding, commands)
