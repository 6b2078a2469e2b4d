"""Model = encoder + named heads. T tokens, B sequences, D hidden."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch
from ownbert.nn.encoder import Encoder
from ownbert.nn.heads import ClassificationHead, MaskedLMHead, NextSentenceHead, Pooler


@dataclass
class Outputs:
    """hidden (T, D); pooled (B, D) where there is a pooler; logits by the name of the head."""

    hidden: Tensor
    pooled: Tensor | None
    logits: dict[str, Tensor] = field(default_factory=dict)


class Model(nn.Module):
    """An encoder, its pooler if it has one, and heads by name.

    heads: any of "mlm", "nsp", "classification". ``labels`` are those of the classification.
    """

    def __init__(
        self,
        config: EncoderConfig,
        heads: Sequence[str] = (),
        *,
        pooler: bool | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.heads = nn.ModuleDict({name: _make_head(name, config, labels) for name in heads})
        needed = any(head.needs_pooler for head in self.heads.values())
        if needed and pooler is False:
            raise ValueError(f"heads {', '.join(heads)} need a pooler; do not ask for none")
        self.pooler = Pooler(config) if pooler or needed or not heads else None
        self.initialize()
        self.tie()

    def tie(self) -> None:
        """Make the MLM decoder's matrix the table of word embeddings."""
        for head in self.heads.values():
            if isinstance(head, MaskedLMHead):
                head.decoder.weight = self.encoder.embeddings.word.weight

    def initialize(self) -> None:
        """Weights from a normal distribution cut off at two deviations, biases zero (as BERT)."""
        std = self.config.initializer_range
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the classification head; empty if there is none."""
        for head in self.heads.values():
            if isinstance(head, ClassificationHead):
                return head.labels
        return ()

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.word.weight.device

    def forward(self, batch: Batch, heads: Sequence[str] | None = None) -> Outputs:
        """Hidden states, and the logits of ``heads`` (of all heads if not named)."""
        hidden = self.encoder(batch)
        pooled = None if self.pooler is None else self.pooler(hidden, batch)
        names = self.heads.keys() if heads is None else heads
        logits = {name: self.heads[name](hidden, pooled, batch) for name in names}
        return Outputs(hidden, pooled, logits)


def _make_head(name: str, config: EncoderConfig, labels: Sequence[str]) -> nn.Module:
    if name == "classification":
        return ClassificationHead(config, labels)
    if name not in _HEADS:
        known = ", ".join([*_HEADS, "classification"])
        raise ValueError(f"head {name!r} is not known; one of {known}")
    return _HEADS[name](config)


_HEADS: Mapping[str, type[nn.Module]] = {"mlm": MaskedLMHead, "nsp": NextSentenceHead}
