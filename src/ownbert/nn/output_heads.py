"""The pooler and the heads on top of an encoder; each head selects its own rows.

T tokens, B sequences, M masked tokens, D hidden, E embedding size, V vocabulary, C labels. Every
head takes hidden states (T, D), the pooler's output (B, D) or None, and the batch.
"""

from collections.abc import Callable, Sequence
from pkgutil import resolve_name

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from ownbert.batches.batch import Batch
from ownbert.batches.layout import Layout, make_layout
from ownbert.batches.sampled_softmax import Candidates
from ownbert.checks import known, maybe
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HEADS, HeadSpec
from ownbert.exceptions import InputError, needing
from ownbert.nn.accumulation import candidate_rows
from ownbert.nn.layers import ACTIVATION, Dropout, Linear, linear, make_norm
from ownbert.nn.variants.feature_embeddings import WordFeatures
from ownbert.nn.variants.ngram_embeddings import WIDTH, NgramTable


class Pooler(nn.Module):
    """The first token through a dense layer and tanh: (T, D) -> (B, D).

    Source: Devlin et al. 2019, section 3.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.plain = config.mobile is not None and not config.mobile.classifier_activation
        if not self.plain:
            self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        first = batch.layout.first(hidden)  # (T, D) -> (B, D)
        return first if self.plain else self.dense(first).tanh()

    def extra_repr(self) -> str:
        return "of the first token" if self.plain else "of the first token, activation=tanh"


class MaskedLMHead(nn.Module):
    """Logits over the vocabulary at the masked positions only: (T, D) -> (M, V).

    A batch without masked positions gets logits at all positions, (T, V); a batch with candidates
    gets logits of these, (M, C), with their offsets. ``decoder`` shares its matrix with the word
    embeddings (tied by ``Model``). If words are narrower than the encoder and ``dense`` does not
    reduce the width (MobileBERT), the rest of the matrix is ``decoder_rest`` (D - E, V). Without
    ``spec.transform`` there is only the decoder (XLNet). With ``spec.features`` a projection of the
    word with its features, which are not masked, is added to each token.
    """

    def __init__(self, config: EncoderConfig, spec: HeadSpec) -> None:
        super().__init__()
        self.features = None if spec.features is None else WordFeatures(config, spec)
        if self.features is not None:
            self.word_projection = Linear(self.features.size, config.hidden_size)
        narrow = config.embedding_size or config.hidden_size
        inner = config.hidden_size if config.mobile is not None else narrow
        self.transform = spec.transform
        self.act = spec.activation or config.hidden_act
        if self.transform:
            self.dense = Linear(config.hidden_size, inner, bias=spec.dense_bias)
            # MobileBERT has a LayerNorm here, too.
            self.norm = nn.LayerNorm(inner, eps=config.layer_norm_eps, bias=config.norm_bias)
        self.decoder = Linear(narrow, config.vocab_size, bias=spec.output_bias)
        self.decoder_rest = None
        if inner > narrow:
            self.decoder_rest = nn.Linear(config.vocab_size, inner - narrow, bias=False)

    def forward(self, hidden: Tensor, pooled: Tensor | None, batch: Batch) -> Tensor:
        positions = batch.masked_positions
        rows = hidden if positions is None else hidden[positions]  # (M, D)
        if self.features is not None:
            words, _, word_of = self.features(hidden, batch)  # (W, D + Z), (T)
            word_of = word_of if positions is None else word_of[positions]
            rows = rows + self.word_projection(words[word_of])
        return self.words(rows, batch.candidates)  # (M, V)

    def words(self, rows: Tensor, candidates: Candidates | None = None) -> Tensor:
        """Logits over words for the vectors of masked tokens or a pooler: (M, D) -> (M, V)."""
        if self.transform:
            rows = self.norm(ACTIVATION[self.act](self.dense(rows)))  # (M, D) -> (M, E)
        if candidates is not None:
            return self._candidate_logits(rows, candidates)
        if self.decoder_rest is None:
            return self.decoder(rows)  # (M, V)
        narrow = self.decoder.weight.shape[1]
        return self.decoder(rows[..., :narrow]) + rows[..., narrow:] @ self.decoder_rest.weight

    def _candidate_logits(self, rows: Tensor, candidates: Candidates) -> Tensor:
        """Logits of candidate words: (M, E) -> (M, C)."""
        weight = candidate_rows(self.decoder.weight, candidates)
        if self.decoder_rest is not None:
            rest = self.decoder_rest.weight.index_select(1, candidates.ids)
            weight = torch.cat((weight, rest.t()), 1)
        bias = candidates.offsets.to(weight.dtype)
        if self.decoder.bias is not None:
            bias = bias + self.decoder.bias[candidates.ids]
        return linear(rows, weight, bias)

    def extra_repr(self) -> str:
        return f"activation={self.act}" if self.transform else "the decoder alone"


class NextSentenceHead(nn.Module):
    """Logits of two classes for each pair of texts: (B, D) -> (B, 2).

    Class 0: the second text follows the first. Class 1: it is unrelated or, in ALBERT's sentence
    order head, the two are swapped.

    Source: Devlin et al. 2019, section 3.1, task 2; Lan et al. 2020, section 3.1.
    """

    def __init__(self, config: EncoderConfig, spec: HeadSpec) -> None:
        super().__init__()
        rate = 0.0 if spec.kind == "nsp" else config.hidden_dropout_prob
        self.dropout = Dropout(rate if spec.dropout is None else spec.dropout)
        # Transformers' sentence order head has one output per label.
        self.dense = Linear(config.hidden_size, spec.output or 2)

    def forward(self, hidden: Tensor, pooled: Tensor, batch: Batch) -> Tensor:
        return self.dense(self.dropout(pooled))  # (B, 2)


class ClassificationHead(nn.Module):
    """Logits of a whole sequence: ``outputs`` values, (B, C), or one for each choice, (B, 1).

    With ``spec.segments`` a group of sequences (a long document) is pooled into one vector, and
    there are as many rows as ``batch.answers``. With ``spec.ngrams`` the last layer also gets the
    n-gram vector of the tokens; with ``spec.features`` words with their features are pooled.
    """

    def __init__(self, config: EncoderConfig, spec: HeadSpec, outputs: int) -> None:
        super().__init__()
        size, rate = config.hidden_size, spec.dropout
        self.dropout = Dropout(config.hidden_dropout_prob if rate is None else rate)
        self.features = None if spec.features is None else WordFeatures(config, spec)
        if self.features is not None:
            size = self.features.size
            _require_plain_pooling(spec)
        self.pooling = None if spec.needs_pooler else POOLINGS[spec.pooling](config)
        self.segments = None if spec.segments is None else POOLINGS[spec.segments](config)
        self.act = spec.dense
        self.norm = None
        if spec.dense is not None:
            first = self.dropout.p if spec.dense_dropout is None else spec.dense_dropout
            self.dense_dropout = Dropout(first if spec.dropout_first else 0.0)
            self.hidden = Linear(size, size, bias=spec.dense_bias)
            self.norm = make_norm(config, size) if spec.dense_norm else None
        self.ngrams = None if spec.ngrams is None else NgramTable(spec.ngrams)
        self.dense = Linear(size if spec.ngrams is None else size + WIDTH, outputs)

    def forward(self, hidden: Tensor, pooled: Tensor | None, batch: Batch) -> Tensor:
        layout = batch.layout
        if self.features is not None:
            hidden, layout, _ = self.features(hidden, batch)  # (W, D + Z)
        vectors = pooled if self.pooling is None else self.pooling(hidden, layout)  # (B, D)
        assert vectors is not None
        if self.segments is not None and batch.groups is not None:
            joined = make_layout(batch.groups, vectors.device)
            vectors = self.segments(vectors, joined)  # (answers, D)
        return self.scores(vectors, batch)

    def scores(self, pooled: Tensor, batch: Batch) -> Tensor:
        """Logits for vectors of whole sequences: (B, D) -> (B, C)."""
        if self.act is not None:
            pooled = ACTIVATION[self.act](self.hidden(self.dense_dropout(pooled)))
            pooled = pooled if self.norm is None else self.norm(pooled)
        if self.ngrams is not None:
            vector = self.ngrams(batch, grouped=self.segments is not None)
            pooled = torch.cat((pooled, vector.to(pooled.dtype)), -1)  # (answers, D + W)
        rows = self.dropout(pooled)
        kind = pooled.device.type
        if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
            return self.dense(rows)  # (B, C)
        # In the dtype of the weights, usually float32: bfloat16 is not faster here, and has only
        # three digits for values in the thousands.
        with torch.autocast(kind, enabled=False):
            dtype = next((p.dtype for p in self.dense.parameters()), torch.float32)
            return self.dense(rows.to(dtype))

    def initialize_ngrams(self) -> None:
        """Initialise larger weights for n-grams than for the pooled vector: the n-gram table starts
        at zero, and its gradient is proportional to them."""
        if self.ngrams is not None:
            nn.init.normal_(self.dense.weight.detach()[:, -WIDTH:], std=WIDTH**-0.5)

    def extra_repr(self) -> str:
        source = "" if self.pooling is not None else "of the pooler's output"
        inner = "" if self.act is None else f"activation={self.act}"
        return ", ".join(part for part in (source, inner) if part)


class TokenHead(nn.Module):
    """Logits of each token: labels (T, C), or start and end of an answer (T, 2).

    ``spec.dense`` adds a dense layer (ModernBERT). ``spec.crf`` adds transition scores for decoding
    (Lafferty, McCallum, Pereira 2001). With ``spec.features`` every token of a word has the vector
    of the word with its features.
    """

    def __init__(self, config: EncoderConfig, spec: HeadSpec, outputs: int) -> None:
        super().__init__()
        # BERT's span head has no dropout; DistilBERT's does.
        default = 0.0 if spec.kind == "span" else config.hidden_dropout_prob
        self.dropout = Dropout(default if spec.dropout is None else spec.dropout)
        size, self.act, self.norm = config.hidden_size, spec.dense, None
        self.features = None if spec.features is None else WordFeatures(config, spec)
        if self.features is not None:
            size = self.features.size
        if spec.dense is not None:
            self.hidden = Linear(size, size, bias=spec.dense_bias)
            self.norm = make_norm(config, size) if spec.dense_norm else None
        self.dense = Linear(size, outputs)
        self.crf = None
        if spec.crf:
            with needing("a CRF needs pytorch-crf: pip install 'ownbert[crf]'"):
                from torchcrf import CRF
            self.crf = CRF(outputs, batch_first=True)

    def forward(self, hidden: Tensor, pooled: Tensor | None, batch: Batch) -> Tensor:
        if self.features is not None:
            words, _, word_of = self.features(hidden, batch)
            hidden = words[word_of]  # (T, D + Z)
        if self.act is not None:
            hidden = ACTIVATION[self.act](self.hidden(hidden))
            hidden = hidden if self.norm is None else self.norm(hidden)
        return self.dense(self.dropout(hidden))


class BeamSpanHead(nn.Module):
    """Logits of each token as the start of an answer: (T, D) -> (T).

    Transformers computes ends given a start, and whether there is an answer, by the other layers.

    Source: Yang et al. 2019, released code (SQuAD).
    """

    def __init__(self, config: EncoderConfig, spec: HeadSpec) -> None:
        super().__init__()
        size = config.hidden_size
        self.start = Linear(size, 1)
        self.end_hidden = Linear(2 * size, size)
        self.end_norm = make_norm(config, size)
        self.end = Linear(size, 1)
        self.answer_hidden = Linear(2 * size, size)
        self.answer = Linear(size, 1, bias=False)

    def forward(self, hidden: Tensor, pooled: Tensor | None, batch: Batch) -> Tensor:
        return self.start(hidden)[..., 0]


class EmbeddingHead(nn.Module):
    """One vector per sequence: (T, D) -> (B, D)."""

    def __init__(self, config: EncoderConfig, spec: HeadSpec) -> None:
        super().__init__()
        self.pooling = POOLINGS[spec.pooling](config)

    def forward(self, hidden: Tensor, pooled: Tensor | None, batch: Batch) -> Tensor:
        return self.pooling(hidden, batch.layout)


class DiscriminatorHead(nn.Module):
    """One logit per token, positive for replaced tokens: (T, D) -> (T).

    Source: Clark et al. 2020, section 2.
    """

    def __init__(self, config: EncoderConfig, spec: HeadSpec) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.act = spec.activation or config.hidden_act
        self.score = Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor, pooled: Tensor | None, batch: Batch) -> Tensor:
        return self.score(ACTIVATION[self.act](self.dense(hidden)))[..., 0]

    def extra_repr(self) -> str:
        return f"activation={self.act}"


class NextTokenHead(nn.Module):
    """Logits of the next token at each position: (T, D) -> (T, V).

    The objective computes the softmax, and stores only its gradient. With shared embeddings the
    matrix is the word table (tied by ``Model``).

    Source: Vaswani et al. 2017, section 3.4.
    """

    def __init__(self, config: EncoderConfig, spec: HeadSpec) -> None:
        super().__init__()
        self.scale = config.hidden_size**-0.5 if spec.scaled else 1.0
        self.projection = Linear(config.hidden_size, config.vocab_size, bias=spec.output_bias)

    def forward(self, hidden: Tensor, pooled: Tensor | None, batch: Batch) -> Tensor:
        return self.logits(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return self.projection(hidden if self.scale == 1.0 else hidden * self.scale)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V): log-probabilities, the log-softmax of the logits."""
        return self.logits(hidden).float().log_softmax(-1)


def _require_plain_pooling(spec: HeadSpec) -> None:
    """Raise ``InputError`` if a pooling has weights, which do not fit vectors with features."""
    if spec.pooling not in ("first", "mean", "max") or spec.segments is not None:
        name = spec.pooling if spec.segments is None else f"{spec.segments} over segments"
        raise InputError(
            "word features support pooling first, mean or max, not {name}; long texts are "
            "truncated",
            name,
        )


def make_head(spec: HeadSpec, config: EncoderConfig, labels: Sequence[str]) -> nn.Module:
    """Create the head described by ``spec`` for an encoder, with one output per label."""
    known("pooler", *POOLINGS)("pooling", spec.pooling)
    maybe(known(*POOLINGS))("segments", spec.segments)
    if (kind := HEADS.get(spec.kind)) is None:
        raise InputError(
            "head {kind!r} is not known; use one of {heads}", spec.kind, ", ".join(HEADS)
        )
    head = resolve_name(kind.module)
    if kind.outputs == 0:
        return head(config, spec)
    return head(config, spec, spec.output or kind.outputs or len(labels))


class FirstPooling(nn.Module):
    """The first token: (T, D) -> (B, D)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        return layout.first(hidden)


class LastPooling(FirstPooling):
    """The last token, XLNet's <cls>: (T, D) -> (B, D)."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        return hidden[layout.cu_seqlens[1:] - 1]


class MeanPooling(FirstPooling):
    """The mean over all tokens, including special tokens: (T, D) -> (B, D)."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        return layout.means(hidden).to(hidden.dtype)


class MaxPooling(FirstPooling):
    """The maximum of each channel: (T, D) -> (B, D)."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        return layout.largest(hidden)


class AttentionPooling(nn.Module):
    """A mean weighted by a softmax over learnt scores: (T, D) -> (B, D).

    Source: Yang et al. 2016, section 2.2.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.score = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        scores = self.score(self.dense(hidden).tanh())  # (T, 1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        # Subtracted to avoid overflow; a softmax does not change. The largest weight is then 1, and
        # the sum of weights is less only in an exported graph, for a text of padding alone.
        weights = (scores - layout.spread(layout.largest(scores.detach()))).exp()
        return (layout.sums(hidden * weights) / layout.sums(weights).clamp_min(1)).to(hidden.dtype)


class RecurrentPooling(nn.Module):
    """Final states of a bidirectional recurrent layer, D/2 channels each way: (T, D) -> (B, D)."""

    layer: type[nn.LSTM] | type[nn.GRU] = nn.GRU

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        if size % 2:
            raise InputError("recurrent pooling halves hidden_size; {size} must be even", size)
        self.recurrent = self.layer(size, size // 2, bidirectional=True)

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        packed = pack_sequence(list(hidden.split(layout.lengths)), enforce_sorted=False)
        state = self.recurrent(packed)[1]
        state = state[0] if isinstance(state, tuple) else state  # (2, B, D/2)
        return state.transpose(0, 1).flatten(1)


class LSTMPooling(RecurrentPooling):
    """``RecurrentPooling`` with an LSTM."""

    layer = nn.LSTM


POOLINGS: dict[str, Callable[[EncoderConfig], nn.Module]] = {
    "first": FirstPooling,
    "last": LastPooling,
    "mean": MeanPooling,
    "max": MaxPooling,
    "attention": AttentionPooling,
    "gru": RecurrentPooling,
    "lstm": LSTMPooling,
}
