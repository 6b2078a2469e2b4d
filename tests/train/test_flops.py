"""The arithmetic of a step, against what PyTorch counts in a forward pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ownbert.batches.batch import Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Mobile
from ownbert.nn.model import Model
from ownbert.train.flops import matmul_rate, training_flops

CONFIG = EncoderConfig(
    vocab_size=90,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=16,
)
MOBILE = Mobile(intra_bottleneck_size=16, num_feedforward_networks=3)
KINDS = {
    "bert": CONFIG,
    "pruned": replace(CONFIG, pruned_heads={1: (0, 2), 3: (1,)}),
    "narrow words": replace(CONFIG, embedding_size=16),
    "shared layers": replace(CONFIG, num_hidden_groups=2, inner_group_num=2),
    "mobile": replace(CONFIG, embedding_size=16, mobile=MOBILE),
    "mobile, attention of the narrow": replace(
        CONFIG, embedding_size=32, mobile=replace(MOBILE, use_bottleneck_attention=True)
    ),
    "mobile, own keys": replace(
        CONFIG, embedding_size=32, mobile=replace(MOBILE, key_query_shared_bottleneck=False)
    ),
    "mobile, wide": replace(
        CONFIG, embedding_size=32, mobile=replace(MOBILE, use_bottleneck=False)
    ),
}


@pytest.mark.parametrize("masked", [0, 5])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_three_times_a_forward_pass(config: EncoderConfig, masked: int):
    lengths = [7, 7, 7]  # of one length, so that no padding is counted
    model = Model(config, ["mlm"] if masked else [], pooler=False).eval()
    batch = pack([Example(np.arange(n), np.zeros(n, int)) for n in lengths])
    batch = replace(batch, masked_positions=torch.arange(masked))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(batch)
    assert training_flops(config, lengths, masked) == 3 * counter.get_total_flops()


def test_longer_sequences_cost_more_than_their_tokens():
    short, long = (training_flops(CONFIG, lengths, 0) for lengths in ([8] * 4, [32]))
    assert long - short == 3 * 4 * 4 * (32**2 - 4 * 8**2) * 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_machine_multiplies(dtype: torch.dtype):
    state = torch.get_rng_state()
    assert 1e8 < matmul_rate("cpu", dtype, seconds=0.01) < 1e15
    assert torch.equal(state, torch.get_rng_state())
