"""The kinds of positions: what a network and the code around it ask of each."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionKind:
    """How tokens know their positions; ``EncoderConfig.positions`` is the kind of a model.

    Args:
        explained: a sentence for the user; n is the length that the model was designed for.
        table: whether a learnt vector for each position is added to the embeddings.
        waves: whether sines and cosines are added to the embeddings: "interleaved", or in "halves",
            all sines before all cosines.
        rotary: whether queries and keys are rotated by position.
        bias: the module of the scores in ``ownbert.nn.positions``, if any.
        multiplies_keys: whether vectors of distances are multiplied by keys, too.
        shared: whether all blocks share the table of ``bias``.
        limited: whether a table of learnt vectors limits or clips the length.
        segments: whether token types are segments, which the scores compare.
        learns_padding: whether the vector of padding is learnt, because decoders start with it.
        counts_gaps: whether padding between tokens increases their distance.
        pads_left: whether padding before a text does not change it.
        own: whether Transformers has no such models.
        unused_table: whether BERT in Transformers has a position table for it, unlike OwnBERT.
    """

    explained: str
    table: bool = False
    waves: str | None = None
    rotary: bool = False
    bias: str | None = None
    multiplies_keys: bool = False
    shared: bool = False
    limited: bool = False
    segments: bool = False
    learns_padding: bool = False
    counts_gaps: bool = False
    pads_left: bool = False
    own: bool = False
    unused_table: bool = False

    @property
    def of_embeddings(self) -> bool:
        """Whether positions are added to the embeddings."""
        return self.table or self.waves is not None


KINDS = {
    "absolute": PositionKind(
        explained="a learnt vector for each of {n} positions, added to the word vectors once; "
        "later layers know them only from the hidden states",
        table=True,
        limited=True,
    ),
    # Vaswani et al. 2017, section 3.5.
    "sinusoidal": PositionKind(
        explained="sines and cosines, added to the word vectors once, made for {n} tokens; later "
        "layers know them only from the hidden states",
        waves="interleaved",
        unused_table=True,
    ),
    # Marian.
    "sinusoidal_halves": PositionKind(
        explained="sines and then cosines, added to the word vectors once, made for {n} "
        "tokens; later layers know them only from the hidden states",
        waves="halves",
    ),
    # Shaw et al. 2018.
    "relative_key": PositionKind(
        explained="a learnt vector for each distance, in the scores of every layer; made for "
        "{n} tokens",
        bias="RelativeKeys",
        limited=True,
        counts_gaps=True,
        unused_table=True,
    ),
    # Huang et al. 2020, method 4.
    "relative_key_query": PositionKind(
        explained="a learnt vector for each distance, with queries and keys, in the scores "
        "of every layer; made for {n} tokens",
        bias="RelativeKeys",
        multiplies_keys=True,
        limited=True,
        counts_gaps=True,
        unused_table=True,
    ),
    # Su et al. 2021.
    "rotary": PositionKind(
        explained="queries and keys of every layer are rotated by position; made for {n} tokens",
        rotary=True,
        own=True,
    ),
    # Press et al. 2022, symmetric in bidirectional attention.
    "alibi": PositionKind(
        explained="scores of every layer fall with distance; made for {n} tokens",
        bias="Alibi",
        counts_gaps=True,
        own=True,
    ),
    # Raffel et al. 2020, section 2.1.
    "relative_buckets": PositionKind(
        explained="a learnt number for each bucket of distances and each head, in the scores "
        "of every layer; made for {n} tokens",
        bias="RelativeBuckets",
        shared=True,
        learns_padding=True,
        counts_gaps=True,
        own=True,
    ),
    # Sinusoids of relative positions (Dai et al. 2019) and a same-segment term (Yang et al. 2019).
    "transformer_xl": PositionKind(
        explained="sinusoids of each distance, and whether two tokens are of one segment, in "
        "the scores of every layer; made for {n} tokens",
        bias="RelativeSinusoids",
        segments=True,
        learns_padding=True,
        counts_gaps=True,
        pads_left=True,
    ),
    # No position in the scores either, unless attention is disentangled (DeBERTa-v3).
    "none": PositionKind(
        explained="the word vectors know no positions; made for {n} tokens", unused_table=True
    ),
}
POSITIONS = tuple(KINDS)
