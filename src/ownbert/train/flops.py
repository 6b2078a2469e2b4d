"""Floating-point operations of a training step, and the measured matmul peak of this machine."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ownbert.batches.batch import Batch
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.layers import multiply, onednn_has_linear
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Objective

# Sizes of the square matrices for measuring the peak: few threads are fastest if everything fits in
# their caches, many need more work; and short products are less likely to be disturbed by other
# programs.
_SIDES = {"cpu": (512, 1536), "cuda": (8192,)}


def step_flops(
    learner: Learner, objectives: Sequence[Objective], micro_batches: Sequence[Batch]
) -> float:
    """FLOPs of the matrix products of a step in this process, forward and backward."""
    flops = 0.0
    for batch in micro_batches:
        if batch.dummy:
            continue
        counts = Counter()  # rows of the decoder
        for objective in objectives:
            if objective.decodes:
                counts[objective.input_view] += objective.count(batch)
        for view in {o.input_view for o in objectives}:
            config = learner.model_of(view).config
            flops += training_flops(config, batch.layout.lengths, counts[view])
    return flops


def training_flops(config: EncoderConfig, lengths: Sequence[int], masked: int) -> float:
    """FLOPs of a forward and a backward pass over sequences of given lengths.

    Only matrix products of the model count, without padding and recomputation. The backward pass
    has two products for each product of the forward pass.

    Args:
        masked: number of tokens in the MLM head; 0 for a model without one.
    """
    tokens, streams = sum(lengths), 1
    if config.mask_vector and masked:  # each predicted token is a row of a second stream
        tokens, streams = tokens + masked, 2
    size = config.head_size
    # Queries by keys, and weights by values; in XLNet also queries by twice as many distances.
    each = 8 if config.position_embedding_type == "transformer_xl" else 4
    products = 2 * tokens * _embedding_weights(config)
    for layer in range(config.num_hidden_layers):
        for block in _blocks_of(config, layer):
            width = size * len(config.kept_heads(block))
            pairs = streams * sum(_pairs(n, config.window_of(block)) for n in lengths)
            products += 2 * tokens * _block_weights(config, width) + each * pairs * width
    products += 2 * masked * _head_weights(config)
    return 3.0 * products


def _pairs(length: int, window: int | None) -> int:
    """Number of query-key pairs in the attention of a sequence."""
    if window is None or window >= length - 1:
        return length * length
    return length * (2 * window + 1) - window * (window + 1)


def _blocks_of(config: EncoderConfig, layer: int) -> Sequence[int]:
    """Indices of the blocks that a layer runs."""
    if config.num_hidden_groups is None:
        return (layer,)
    inner = config.inner_group_num
    first = config.group_of(layer) * inner
    return range(first, first + inner)


def _embedding_weights(config: EncoderConfig) -> int:
    if config.embedding_size is None:
        return 0
    parts = 3 if config.mobile is not None and config.mobile.trigram_input else 1
    return parts * config.embedding_size * config.hidden_size


def _block_weights(config: EncoderConfig, width: int) -> int:
    """Elements of the matrices of a block whose heads have a total width of ``width``."""
    hidden, inner, mobile = config.hidden_size, config.intermediate_size, config.mobile
    if mobile is None:
        return 4 * hidden * width + (3 if config.gated_feed_forward else 2) * hidden * inner
    narrow = config.attention_size
    inside = mobile.use_bottleneck_attention
    query_key = narrow if inside or mobile.key_query_shared_bottleneck else hidden
    value = narrow if inside else hidden
    attention = (2 * query_key + value + narrow) * width
    bottlenecks = 0
    if mobile.use_bottleneck:
        bottlenecks = 2 if inside or not mobile.key_query_shared_bottleneck else 3
    projections = bottlenecks * hidden * narrow
    return attention + projections + mobile.num_feedforward_networks * 2 * narrow * inner


def _head_weights(config: EncoderConfig) -> int:
    """Number of elements of the MLM head's matrices: dense layer and decoder."""
    narrow = config.embedding_size or config.hidden_size
    if config.mask_vector:  # only the decoder
        return narrow * config.vocab_size
    inner = config.hidden_size if config.mobile is not None else narrow
    return config.hidden_size * inner + inner * config.vocab_size


@torch.no_grad()
def matmul_rate(
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    seconds: float = 0.3,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure the matmul peak in FLOP per second.

    It is the rate of the fastest of the large matrix products that fit in ``seconds``, with the
    number of threads that torch uses. The MFU of a step is its ``training_flops`` per second
    divided by this rate.
    """
    device = torch.device(device)
    products: list[tuple[int, Callable[[], Tensor]]] = []
    for side in _SIDES.get(device.type, _SIDES["cpu"]):
        a = torch.ones(side, side, device=device, dtype=dtype)
        products.append((2 * side**3, partial(torch.mm, a, a)))
        if device.type == "cpu" and onednn_has_linear(dtype):
            products.append((2 * side**3, partial(multiply, a, a, None)))
    for _, product in products:  # warm-up
        product()
    best, end = 0.0, clock() + seconds
    while True:
        for operations, product in products:
            _synchronize(device)
            start = clock()
            product()
            _synchronize(device)
            best = max(best, operations / (clock() - start))
        if clock() > end:
            return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
