"""Token embeddings: word + position + type, normalised (Devlin et al. 2019, figure 2).

T tokens, D hidden.
"""

from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch
from ownbert.nn.dropout import Dropout


class Embeddings(nn.Module):
    """Sum of three tables, then LayerNorm and dropout."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position_embeddings, size)
        self.token_type = nn.Embedding(config.type_vocab_size, size)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, batch: Batch) -> Tensor:
        """(T, D). Raises ``ValueError`` for a sequence longer than the position table."""
        if batch.layout.max_seqlen > self.position.num_embeddings:
            raise ValueError(
                f"a sequence of {batch.layout.max_seqlen} tokens is longer than the "
                f"{self.position.num_embeddings} positions of the model; cut it"
            )
        hidden = (
            self.word(batch.token_ids)
            + self.position(batch.positions)
            + self.token_type(batch.type_ids)
        )  # (T, D)
        return self.dropout(self.norm(hidden))
