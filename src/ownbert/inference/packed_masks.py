"""The MLM head of a model folder, run by torch on packed batches.

M masks, V vocabulary size, k candidates.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ownbert.batches.batch import pack
from ownbert.batches.example import Example
from ownbert.checkpoint import Description, load
from ownbert.objectives.permutation_lm import permuted_view
from ownbert.train.device import pick_device


class PackedMasks:
    """A model with an MLM head.

    Args:
        description: description of the folder.
        device: auto, cpu or cuda.

    Raises:
        InputError: the folder has no MLM head, or is damaged.
    """

    def __init__(self, description: Description, device: str) -> None:
        self.model = load(description, heads=["mlm"]).to(pick_device(device))

    @torch.inference_mode()
    def likeliest(
        self, examples: Sequence[Example], known: np.ndarray, top: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The most probable tokens at the masked positions of all examples.

        Args:
            examples: examples with masked positions.
            known: ids of the candidate tokens.
            top: number of candidates k, at most the number of known tokens.

        Returns:
            Probabilities over the whole vocabulary, float32 (M, k), largest first, and ids (M, k).
        """
        shares = self._logits(examples).softmax(-1)
        ids = torch.from_numpy(known).to(shares.device)
        best = shares[:, ids].topk(min(top, len(ids)))
        return best.values.cpu().numpy(), ids[best.indices].cpu().numpy()

    @torch.inference_mode()
    def surprisals(self, examples: Sequence[Example]) -> np.ndarray:
        """Surprisals -ln p of the token (``masked_ids``) at each masked position: float32 (M)."""
        log_probs = self._logits(examples).log_softmax(-1)
        ids = torch.from_numpy(np.concatenate([np.asarray(e.masked_ids) for e in examples]))
        return -log_probs.gather(1, ids.to(log_probs.device)[:, None])[:, 0].cpu().numpy()

    def _logits(self, examples: Sequence[Example]) -> torch.Tensor:
        """Logits of the masked positions: float32 (M, V)."""
        batch = pack(examples).to(self.model.device)
        if self.model.config.mask_vector:
            # Masks come first in the permutation: a query stream predicts each of them from the
            # words, and no mask is visible.
            batch = permuted_view(batch)
        return self.model(batch, ["mlm"]).logits["mlm"].float()
