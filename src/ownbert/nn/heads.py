"""What stands on an encoder: the pooler and the heads, each of which picks its own rows.

T tokens, B sequences, M masked tokens, D hidden, V vocabulary, C labels.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch
from ownbert.nn.blocks import ACTIVATION
from ownbert.nn.dropout import Dropout


class Pooler(nn.Module):
    """The first token through a dense layer and tanh (Devlin et al. 2019, section 3)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        return self.dense(hidden[batch.first]).tanh()  # (T, D) -> (B, D)


class MaskedLMHead(nn.Module):
    """Logits over the vocabulary at the masked positions only; all positions if none are named.

    The matrix of ``decoder`` is the table of word embeddings itself: ``Model`` ties them.
    """

    needs_pooler = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATION[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden: Tensor, pooled: Tensor | None, batch: Batch) -> Tensor:
        rows = hidden if batch.masked_positions is None else hidden[batch.masked_positions]
        return self.decoder(self.norm(self.activation(self.dense(rows))))  # (M, D) -> (M, V)


class NextSentenceHead(nn.Module):
    """Class 0: the second part follows the first; class 1: it comes from elsewhere."""

    needs_pooler = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor, pooled: Tensor, batch: Batch) -> Tensor:
        return self.dense(pooled)  # (B, 2)


class ClassificationHead(nn.Module):
    """One of ``labels`` for a sequence, from the pooled first token."""

    needs_pooler = True

    def __init__(self, config: EncoderConfig, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = tuple(labels)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.dense = nn.Linear(config.hidden_size, len(self.labels))

    def forward(self, hidden: Tensor, pooled: Tensor, batch: Batch) -> Tensor:
        return self.dense(self.dropout(pooled))  # (B, C)
