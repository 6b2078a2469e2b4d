"""Word features besides the text: tags of each word, from columns of the rows.

T tokens, W words of a batch, D hidden, F feature columns, Z size of a word's feature vector.
"""

import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.batches.layout import Layout, make_layout
from ownbert.batches.word_features import Features, number_tags
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.nn.layers import Dropout

# Kernel size of the convolution, in tokens.
_WIDTH = 3


class WordFeatures(nn.Module):
    """The words of a text with their features: (T, D) -> (W, D + Z).

    A word is the maximum over a convolution of its tokens, each feature a row of its table; the
    features of a word pass through a norm and a dense layer over all columns. Special tokens are
    words with feature 0 (none). With semantic roles as columns, one per predicate, this is SemBERT;
    but there all columns share a table, and here each has its own, because tags of different
    columns need not mean the same. Words shorter than the kernel are padded with zeros; longer ones
    are not, independent of the other words in the batch.

    Source: Zhang et al. 2020 (SemBERT), sections 3.2 and 3.3.
    """

    def __init__(self, config: EncoderConfig, spec: HeadSpec) -> None:
        super().__init__()
        hidden, size = config.hidden_size, spec.feature_size
        tables = spec.features or ()
        self.convolution = nn.Conv1d(hidden, hidden, _WIDTH)
        self.tables = nn.ModuleList(nn.Embedding(rows, size) for rows in tables)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dense = nn.Linear(len(tables) * size, size)
        rate = config.hidden_dropout_prob if spec.dropout is None else spec.dropout
        self.dropout = Dropout(rate)
        self.size = hidden + size

    def forward(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Layout, Tensor]:
        """Hidden states (T, D) -> words (W, D + Z), their layout, and the word index of each token
        (T)."""
        if batch.words is None:
            raise InputError(
                "the model also reads columns of word features, but was given only texts"
            )
        sizes, ids = batch.words[:, 0], batch.words[:, 1:]
        count, tokens = len(sizes), len(hidden)
        numbers = torch.arange(count, device=sizes.device)
        word_of = torch.repeat_interleave(numbers, sizes, output_size=tokens)
        first = sizes.cumsum(0) - sizes
        words = self.dropout(self._words(hidden, sizes, word_of, first))
        features = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        mixed = self.dense(self.dropout(self.norm(torch.stack(features, 1))).flatten(1))
        counts = torch.bincount(batch.layout.sequences[first], minlength=batch.sequences)
        layout = make_layout(counts.tolist(), hidden.device)
        return torch.cat((words, mixed.to(words.dtype)), 1), layout, word_of

    @torch.no_grad()
    def start_from(self, pretrained: "WordFeatures", known: Features, features: Features) -> None:
        """Copy the weights of pretrained features with the same columns, whose tags are ``known``;
        tags of this module (``features``) that it does not know keep their initial rows."""
        theirs = dict(pretrained.named_parameters())
        for name, parameter in self.named_parameters():
            if not name.startswith("tables."):
                parameter.copy_(theirs[name])
        ids = number_tags(known)
        for number, tags in enumerate(features.values()):
            rows = [0, *(ids[number].get(tag, -1) for tag in tags)]
            matched = [row for row, old in enumerate(rows) if old >= 0]
            old = pretrained.get_parameter(f"tables.{number}.weight")
            self.get_parameter(f"tables.{number}.weight")[matched] = old[[rows[i] for i in matched]]

    def _words(self, hidden: Tensor, sizes: Tensor, word_of: Tensor, first: Tensor) -> Tensor:
        """(T, D) -> (W, D): the maximum of each channel over the positions of the convolution in a
        word."""
        place = torch.arange(len(hidden), device=sizes.device) - first[word_of]
        left = sizes[word_of] - place  # tokens left in the word
        weights, bias = self.convolution.weight, self.convolution.bias
        convolved = nn.functional.linear(hidden, weights[..., 0], bias)
        for ahead in range(1, _WIDTH):
            later = nn.functional.linear(hidden, weights[..., ahead])
            later = nn.functional.pad(later, (0, 0, 0, ahead))[ahead:]
            convolved = convolved + later * (left > ahead)[:, None]
        begins = (left >= _WIDTH) | (place == 0)
        # Values are not negative, so zeroing excluded positions does not change the maximum.
        convolved = convolved.relu() * begins[:, None]
        return torch.segment_reduce(convolved, "max", lengths=sizes)

    def extra_repr(self) -> str:
        return "a convolution of tokens and its maximum, beside features"
