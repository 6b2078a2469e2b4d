"""Masked language modelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ownbert.objectives.objective import PretrainingObjective

if TYPE_CHECKING:
    import numpy as np

    from ownbert.batches.masking import Masker
    from ownbert.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class MaskedLM(PretrainingObjective):
    """Cross entropy of the masked tokens (Devlin et al. 2019, section 3.1, task 1)."""

    name = "mlm"
    title, short, colour = "masked words", "MLM", 0
    explained = "masked words"
    decodes = predicts = reads_features = True
    uses = frozenset({"masking", "mask_rate", "ngram"})
    auto_class = "AutoModelForMaskedLM"

    @classmethod
    def masker(cls, tokenizer: Tokenizer, ordinary: np.ndarray, task: Any) -> Masker:
        from ownbert.batches.masking import Masking, continuing_tokens

        return Masking(
            tokenizer.mask_id,
            ordinary,
            task.rate,
            kind=task.masking,
            continues=None if task.masking == "token" else continuing_tokens(tokenizer),
            longest=task.ngram if task.masking == "ngram" else None,
        )
