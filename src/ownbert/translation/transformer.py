"""The Transformer of Vaswani et al. 2017 ("Attention Is All You Need"), built from BERT's parts.

    from ownbert.translation.transformer import log_probs, make_model

    model = make_model(src_vocab=11, tgt_vocab=11, N=2)
    log_probs(model, source, target)  # (B, S'), (B, S) -> (B, S, V)

Encoder and decoder are stacks of the same block; the blocks of the decoder have a third sublayer,
which attends to the encoder. S' and S are the lengths of the longest source and target.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ownbert.batches.batch import Batch, from_padded, to_padded
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.nn.layers import Linear
from ownbert.nn.model import Model
from ownbert.nn.output_heads import NextTokenHead

# Number of the paper's matrices in a fused one.
_FUSED = {"qkv": 3, "key_value": 2}


def make_model(
    src_vocab: int,
    tgt_vocab: int,
    N: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    h: int = 8,
    dropout: float = 0.1,
    *,
    share_embeddings: bool = False,
    **changes: Any,
) -> Model:
    """Build the paper's model with new weights.

    Args:
        src_vocab: source vocabulary size.
        tgt_vocab: target vocabulary size.
        N: number of layers.
        d_model: hidden size.
        d_ff: feed-forward size.
        h: number of heads.
        dropout: dropout rate.
        share_embeddings: whether source, target and generator share one matrix (section 3.4), which
            requires a joint vocabulary.
        changes: other fields of ``EncoderConfig``; ``encoder`` and ``decoder`` are mappings of
            fields for one of the stacks. ``norm_first=True`` makes both pre-norm with a final
            LayerNorm.

    Raises:
        InputError: the sizes are inconsistent.
    """
    if share_embeddings and src_vocab != tgt_vocab:
        raise InputError(
            "share_embeddings needs one vocabulary, not src_vocab {src_vocab} and tgt_vocab "
            "{tgt_vocab}",
            src_vocab,
            tgt_vocab,
        )
    encoder, decoder = (dict[str, Any](changes.pop(name, {})) for name in ("encoder", "decoder"))
    source = transformer_config(src_vocab, N, d_model, d_ff, h, dropout, **(changes | encoder))
    target = transformer_config(tgt_vocab, N, d_model, d_ff, h, dropout, **(changes | decoder))
    return from_configs(source, target, share_embeddings=share_embeddings)


def transformer_config(
    vocab_size: int, N: int, d_model: int, d_ff: int, h: int, dropout: float, **changes: Any
) -> EncoderConfig:
    """The config of one of the two stacks (section 3 and table 3)."""
    paper: dict[str, Any] = {
        "vocab_size": vocab_size,
        "num_hidden_layers": N,
        "hidden_size": d_model,
        "intermediate_size": d_ff,
        "num_attention_heads": h,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": "relu",
        "type_vocab_size": 0,
        "position_embedding_type": "sinusoidal",
        "norm_embeddings": False,
        "scale_embeddings": True,
        "layer_norm_eps": 1e-5,
        "final_norm": changes.get("norm_first", False),
    }
    return EncoderConfig(**(paper | changes))


def from_configs(
    source: EncoderConfig, target: EncoderConfig, *, share_embeddings: bool = False
) -> Model:
    """Build an encoder, a decoder with cross-attention and a generator, Xavier-initialised.

    Raises:
        InputError: the hidden sizes differ.
    """
    if source.hidden_size != target.hidden_size:
        raise InputError(
            "the encoder has hidden size {hidden_size} and the decoder {target_hidden_size}; "
            "they must be equal",
            source.hidden_size,
            target.hidden_size,
        )
    target = replace(target, is_decoder=True, add_cross_attention=True)
    model = Model(
        source,
        ["generator"],
        decoder=target,
        share_embeddings=share_embeddings,
        model_type="marian",
    )
    initialize(model)
    return model


def initialize(model: nn.Module) -> None:
    """Initialise all matrices Xavier-uniformly (Glorot and Bengio 2010, equation 16).

    Queries, keys and values are initialised separately; biases are zero.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            for matrix in module.weight.data.chunk(_FUSED.get(name.rsplit(".", 1)[-1], 1)):
                nn.init.xavier_uniform_(matrix)
        if isinstance(module, Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def to_batch(
    source: Tensor,
    target: Tensor,
    source_mask: Tensor | None = None,
    target_mask: Tensor | None = None,
) -> tuple[Batch, Tensor]:
    """Pack padded ids (B, S') and (B, S) into a batch; also return the index for ``to_padded``.

    Args:
        source: (B, S') source ids.
        target: (B, S) target ids.
        source_mask: (B, S') 1 at tokens and 0 at padding; None: no padding.
        target_mask: (B, S) likewise for the target.
    """
    source_batch, _ = from_padded(source, source_mask)
    batch, index = from_padded(target, target_mask)
    cross = replace(batch.layout, keys=source_batch.layout)
    layout = replace(batch.layout, causal=True)
    return replace(batch, layout=layout, source=source_batch, cross=cross), index


def log_probs(
    model: Model,
    source: Tensor,
    target: Tensor,
    source_mask: Tensor | None = None,
    target_mask: Tensor | None = None,
) -> Tensor:
    """Log-probabilities of each next token: (B, S') and (B, S) -> (B, S, V); zeros at padding."""
    batch, index = to_batch(source, target, source_mask, target_mask)
    generator = model.heads["generator"]
    assert isinstance(generator, NextTokenHead)
    packed = generator.log_probs(model(batch, []).hidden)
    return to_padded(packed, index, (target.shape[0], target.shape[1]))
