"""The encoder: embeddings and a stack of blocks. T tokens, D hidden."""

from torch import Tensor, nn

from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch
from ownbert.nn.blocks import EncoderBlock
from ownbert.nn.embeddings import Embeddings


class Encoder(nn.Module):
    """BERT without its pooler and heads."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_hidden_layers))

    def forward(self, batch: Batch) -> Tensor:
        """(T, D)"""
        hidden = self.embeddings(batch)
        for block in self.blocks:
            hidden = block(hidden, batch.layout)
        return hidden
