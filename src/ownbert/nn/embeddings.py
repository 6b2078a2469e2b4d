"""Token embeddings: word + position + type, then LayerNorm (Devlin et al. 2019, figure 2).

T tokens, E embedding size, D hidden.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.fast.accumulation import candidate_rows
from ownbert.nn.layers import Dropout, Linear, make_norm
from ownbert.nn.positions import sinusoids


class Embeddings(nn.Module):
    """The sum of the embedding tables in the config, then LayerNorm and dropout.

    The Transformer of 2017 has no LayerNorm here. If E differs from D, ``projection`` maps the sum
    to D (ALBERT, ELECTRA). MobileBERT projects the words before the sum, each concatenated with its
    two neighbours, which are zero beyond the ends of a text; DeBERTa projects the sum before
    LayerNorm.

    Source: Devlin et al. 2019, figure 2; Sun et al. 2020, section 3.1.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        width = config.embedding_size or hidden
        self.kind, self.offset = config.position_embedding_type, config.position_offset
        self.longest = config.max_length
        self.scale = math.sqrt(width) if config.scale_embeddings else 1.0
        # T5 and XLNet learn the vector of padding: T5's decoder starts with this token.
        learnt = self.kind in ("relative_buckets", "transformer_xl")
        padding = None if learnt else config.pad_token_id
        self.word = nn.Embedding(config.vocab_size, width, padding_idx=padding)
        self.trigram = config.mobile is not None and config.mobile.trigram_input
        self.widen_first = config.mobile is not None
        self.norm_last = config.disentangled is not None
        size = hidden if self.widen_first else width
        if self.kind == "absolute":
            self.position = nn.Embedding(config.max_position_embeddings, size)
        if config.type_vocab_size:
            self.token_type = nn.Embedding(config.type_vocab_size, size)
        if config.task_type_vocab_size:
            self.task_type = nn.Embedding(config.task_type_vocab_size, size)
        self.mask = nn.Parameter(torch.zeros(hidden)) if config.mask_vector else None
        # In Transformers 4.57.6 the LayerNorm of MobileBERT's embeddings has PyTorch's epsilon.
        eps = 1e-5 if self.widen_first else None
        normed = hidden if self.norm_last else size
        self.norm = make_norm(config, normed, eps=eps) if config.norm_embeddings else None
        self.dropout = Dropout(config.hidden_dropout_prob)
        if config.embedding_size is not None:
            bias = not self.norm_last
            self.projection = Linear(width * (3 if self.trigram else 1), hidden, bias=bias)

    def forward(self, batch: Batch) -> Tensor:
        """Packed batch -> (T, D).

        Raises:
            ValueError: a sequence is too long.
        """
        length = (batch.layout.keys or batch.layout).max_seqlen  # including cached tokens
        if self.longest is not None and length > self.longest:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the {self.longest} positions of "
                "the model; truncate it"
            )
        hidden = self._words(batch) if batch.embeds is None else batch.embeds  # (T, E)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.trigram:
            before, after = batch.layout.beside(hidden, repeat=False)
            hidden = torch.cat((after, hidden, before), -1)  # (T, 3E)
        if self.widen_first and hasattr(self, "projection"):
            hidden = self.projection(hidden)  # (T, D)
        if self.kind == "absolute":
            hidden = hidden + self.position(batch.positions + self.offset)
        elif self.kind in ("sinusoidal", "sinusoidal_halves"):
            halves = self.kind == "sinusoidal_halves"
            known = sinusoids(batch.positions, hidden.shape[-1], halves=halves)
            hidden = hidden + known.to(hidden.dtype)
        if hasattr(self, "token_type"):
            hidden = hidden + self.token_type(batch.type_ids)
        if hasattr(self, "task_type"):
            tasks = torch.zeros_like(batch.token_ids) if batch.task_ids is None else batch.task_ids
            hidden = hidden + self.task_type(tasks)
        if self.norm_last and hasattr(self, "projection"):
            hidden = self.projection(hidden)
        hidden = hidden if self.norm is None else self.norm(hidden)
        if self.norm_last and batch.layout.is_token is not None:
            hidden = hidden * batch.layout.is_token
        hidden = self.dropout(hidden)
        if not (self.widen_first or self.norm_last) and hasattr(self, "projection"):
            hidden = self.projection(hidden)
        return hidden

    def _words(self, batch: Batch) -> Tensor:
        """(T, E)"""
        if batch.candidates is None:
            return self.word(batch.token_ids)
        rows = candidate_rows(self.word.weight, batch.candidates)
        return F.embedding(batch.candidates.index_of(batch.token_ids), rows)

    def predicted(self, count: int) -> Tensor:
        """The initial vectors (count, D) of tokens to be predicted, equal for all tokens.

        Raises:
            ValueError: the model has no such vector.
        """
        if self.mask is None:
            raise ValueError("this model has no query stream: mask_vector is false")
        return self.dropout(self.mask.expand(count, -1))

    def extra_repr(self) -> str:
        longest = "" if self.longest is None else f", longest={self.longest}"
        return f"positions={self.kind}{longest}"
