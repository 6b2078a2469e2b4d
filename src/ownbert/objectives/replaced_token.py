"""Replaced token detection, by the discriminator of an ELECTRA."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.objectives.objective import Loss, PretrainingObjective, unmasked

if TYPE_CHECKING:
    from torch import Tensor

    from ownbert.batches.batch import Batch
    from ownbert.nn.model import Model

# Size of the generator's attention heads, as in all published models.
_HEAD_SIZE = 64


@dataclass(frozen=True)
class ReplacedToken(PretrainingObjective):
    """Whether each token was replaced by a generator (Clark et al. 2020, section 2)."""

    weight: float = 50.0
    name, head, input_view = "rtd", "discriminator", "corrupted"
    title, short, colour = "replaced words", "replaced words", 6
    explained = "replaced tokens, with mlm"
    network = "ELECTRA"
    samples = False
    auto_class = "AutoModel"

    def count(self, batch: Batch) -> int:
        return 0 if batch.masked_ids is None else batch.tokens

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        from torch.nn.functional import binary_cross_entropy_with_logits

        assert batch.replaced is not None
        logits = logits.float()  # (T)
        truth = batch.replaced
        total = binary_cross_entropy_with_logits(logits, truth.float(), reduction="sum")
        correct = ((logits.detach() > 0) == truth).sum()
        return Loss(total, correct, truth.numel(), (~truth).sum())

    def to_view(self, batch: Batch, logits: Mapping[str, Tensor]) -> Batch:
        return corrupted_view(batch, logits["mlm"])

    @classmethod
    def require(cls, names: Set[str]) -> None:
        if names != {"mlm", "rtd"}:
            raise InputError("task.objectives has rtd, which requires mlm and nothing else")

    @classmethod
    def make_network(cls, config: EncoderConfig, settings: Any) -> tuple[Model, Model]:
        """A discriminator, and a narrower generator with its embeddings (Clark et al. 2020, section
        3.1)."""
        from ownbert.nn.model import Model

        model = Model(config, ["discriminator"], pooler=False, model_type="electra")
        width = max(
            _HEAD_SIZE, round(config.hidden_size * settings.generator / _HEAD_SIZE) * _HEAD_SIZE
        )
        narrow = replace(
            config,
            hidden_size=width,
            num_attention_heads=width // _HEAD_SIZE,
            intermediate_size=4 * width,
            embedding_size=config.hidden_size if width != config.hidden_size else None,
        )
        spec = HeadSpec("mlm", activation="gelu")
        generator = Model(narrow, [spec], pooler=False, model_type="electra")
        ours, theirs = generator.encoder.embeddings, model.encoder.embeddings
        ours.word, ours.position, ours.token_type = theirs.word, theirs.position, theirs.token_type
        generator.tie()
        return model, generator


def corrupted_view(batch: Batch, logits: Tensor) -> Batch:
    """The batch with tokens drawn from a generator's ``logits`` (M, V) where it was masked;
    ``replaced`` (T) is true where they differ from the original ones."""
    import torch

    assert batch.masked_positions is not None
    assert batch.masked_ids is not None
    with torch.no_grad():
        # The largest of logits with Gumbel noise is a draw from their softmax.
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log_()
        drawn = (logits.float() - noise).argmax(-1)
        ids = batch.token_ids.index_copy(0, batch.masked_positions, drawn)
        return replace(batch, token_ids=ids, replaced=ids != unmasked(batch))
