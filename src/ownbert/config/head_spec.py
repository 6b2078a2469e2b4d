"""The specification of a head: its kind and its options."""

from dataclasses import dataclass, field, fields

from ownbert import limits
from ownbert.checks import checked, list_of, maybe, one_of, record, truth, whole
from ownbert.config import ACTIVATIONS, RATE_CHECK

# How token vectors are pooled to one vector without BERT's pooler (nn/output_heads.py).
POOLINGS = ("first", "last", "mean", "max", "attention", "gru", "lstm")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKind:
    """What is known of a kind of head before torch is loaded."""

    module: str  # its module and class in ``nn``
    outputs: int | None = 0  # number of outputs; None: one for each label; 0: the class decides
    pools: bool = False  # whether it reads the pooler's output by default
    exported: tuple[str, ...] = ()  # outputs of an exported file to read; empty: hidden states
    per_token: bool = False  # whether these have a row for each token, not for each sequence


_NN = "ownbert.nn.output_heads:"
HEADS: dict[str, HeadKind] = {
    "mlm": HeadKind(module=f"{_NN}MaskedLMHead"),
    "nsp": HeadKind(module=f"{_NN}NextSentenceHead", pools=True),
    "sop": HeadKind(module=f"{_NN}NextSentenceHead", pools=True),
    "classification": HeadKind(
        module=f"{_NN}ClassificationHead", outputs=None, pools=True, exported=("logits",)
    ),
    "choice": HeadKind(
        module=f"{_NN}ClassificationHead", outputs=1, pools=True, exported=("logits",)
    ),
    "tokens": HeadKind(
        module=f"{_NN}TokenHead", outputs=None, exported=("logits",), per_token=True
    ),
    "span": HeadKind(
        module=f"{_NN}TokenHead",
        outputs=2,
        exported=("start_logits", "end_logits"),
        per_token=True,
    ),
    "discriminator": HeadKind(module=f"{_NN}DiscriminatorHead"),
    "embedding": HeadKind(module=f"{_NN}EmbeddingHead"),
    "generator": HeadKind(module=f"{_NN}NextTokenHead"),
    "beam_span": HeadKind(module=f"{_NN}BeamSpanHead"),
}
# Number of classes; the largest published label sets are about this large.
MOST_LABELS = 1_000_000


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A head, with the options in which families differ.

    Args:
        kind: one of ``HEADS``.
        pooling: how token vectors are pooled: ``pooler`` or one of ``POOLINGS``.
        dense: activation of a dense layer (D x D) before the output layer; None: no such layer.
        dropout_first: whether dropout is also applied before the dense layer.
        activation: activation of the mlm and discriminator heads, by default the encoder's.
        dropout: dropout rate of the head, by default ``hidden_dropout_prob``.
        output: output width, by default the number of labels.
        segments: how the segment vectors of a document are pooled, one of ``POOLINGS``; None: each
            sequence is classified separately.
        crf: whether tag sequences are decoded with a CRF.
        features: sizes of the embedding tables of word features, one for each column of tags
            (nn/variants/feature_embeddings.py); None: no such columns.
        feature_size: width of the embedding of a word feature.
        ngrams: rows of the table of hashed n-gram embeddings, whose sum is concatenated to the
            pooled vector; None: no such table.
        dense_bias: whether the dense layer has a bias.
        output_bias: whether the decoder of an mlm head, or the matrix of a generator, has a bias.
        dense_norm: whether a norm follows the dense layer (always true of an mlm head).
        transform: whether an mlm head has its dense layer and norm (not in XLNet).
        tied: whether a generator shares the word embeddings when encoder and decoder share them.
        scaled: whether a generator divides hidden states by sqrt(D) (T5).
        dense_dropout: dropout rate before the dense layer, by default ``dropout``.
    """

    kind: str = field(metadata={"check": lambda name, value: one_of(*HEADS)(name, value)})
    pooling: str = checked("pooler", one_of("pooler", *POOLINGS))
    dense: str | None = checked(None, maybe(one_of(*ACTIVATIONS)))
    dropout_first: bool = checked(True, truth)
    activation: str | None = checked(None, maybe(one_of(*ACTIVATIONS)))
    dropout: float | None = checked(None, maybe(RATE_CHECK))
    output: int | None = checked(None, maybe(whole(1, MOST_LABELS)))
    segments: str | None = checked(None, maybe(one_of(*POOLINGS)))
    crf: bool = checked(False, truth)
    ngrams: int | None = checked(None, maybe(whole(1, 1 << 23)))
    dense_bias: bool = checked(True, truth)
    dense_norm: bool = checked(False, truth)
    output_bias: bool = checked(True, truth)
    transform: bool = checked(True, truth)
    tied: bool = checked(True, truth)
    scaled: bool = checked(False, truth)
    dense_dropout: float | None = checked(None, maybe(RATE_CHECK))
    features: tuple[int, ...] | None = checked(
        None, maybe(list_of(whole(1, MOST_LABELS), most=limits.FEATURES))
    )
    feature_size: int = checked(10, whole(1, limits.WIDTH))

    def __post_init__(self) -> None:
        for name in ("dropout", "dense_dropout"):  # from config.json files of others
            maybe(RATE_CHECK)(name, getattr(self, name))
        if self.features is not None:  # JSON has no tuples
            object.__setattr__(self, "features", tuple(self.features))

    @property
    def needs_pooler(self) -> bool:
        return self.kind in HEADS and HEADS[self.kind].pools and self.pooling == "pooler"

    @property
    def labelled(self) -> bool:
        """Whether it has one output for each label."""
        return self.kind in HEADS and HEADS[self.kind].outputs is None


# The schema of a head in config.json.
HEAD_KEYS = record(
    {f.name: f.metadata["check"] for f in fields(HeadSpec)}, required=("kind",), closed=True
)
