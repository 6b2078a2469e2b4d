"""FLOPs and devices."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ownbert.batches.batch import Batch, Example, pack
from ownbert.batches.sampled_softmax import CandidateSampler
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Mobile
from ownbert.nn.model import Model
from ownbert.objectives.language_modelling import MaskedLM, ReplacedToken
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import unmasked
from ownbert.objectives.span_corruption_lm import SpanCorruptionLM
from ownbert.pretraining.pretrain_recipe import PretrainModel
from ownbert.train.meter import matmul_rate, step_flops, training_flops

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
    model = Model(config, ["mlm"] if masked else [], pooler=False)
    batch = replace(_batch(lengths), masked_positions=torch.arange(masked))
    rows = {model.heads["mlm"]: masked} if masked else {}
    assert training_flops(model, lengths, rows) == 3 * _counted(model, batch)


def test_a_sampled_softmax_counts_with_the_sampled_words():
    model = Model(replace(CONFIG, vocab_size=5000), ["mlm"], pooler=False)
    batch = replace(
        _batch([10] * 8), masked_positions=torch.arange(40), masked_ids=torch.arange(40)
    )
    torch.manual_seed(0)
    sampler = CandidateSampler(torch.full((5000,), 1 / 5000), draws=200)
    sampled = step_flops(Learner(model, [MaskedLM()], sampler=sampler), [MaskedLM()], [batch])
    full = step_flops(Learner(model, [MaskedLM()]), [MaskedLM()], [batch])
    words = len(sampler(unmasked(batch), batch.token_ids).ids.unique())
    assert (full - sampled) / (3 * 2 * 40 * 32) == pytest.approx(5000 - words, abs=15)


@pytest.mark.parametrize(("written", "read"), [(3, 7), (9, 4)])
def test_an_encoder_and_a_decoder_count_with_their_own_lengths(written: int, read: int):
    objective = SpanCorruptionLM()
    config = objective.structure(replace(CONFIG, position_embedding_type="absolute"), 0.0)
    network = objective.make_network(config, None)
    assert network is not None
    model, _ = network

    def ids(length: int) -> np.ndarray:
        return np.arange(1, length + 1)

    text = Example(ids(written), ids(written) * 0, source=Example(ids(read), ids(read) * 0))
    batch = pack([replace(text, tags=ids(written))] * 3)
    assert step_flops(Learner(model, [objective]), [objective], [batch]) == 3 * _counted(
        model, batch
    )


def test_a_discriminator_and_its_generator_are_counted():
    objectives = [MaskedLM(), ReplacedToken()]
    config = replace(CONFIG, hidden_size=128, num_attention_heads=4)
    network = ReplacedToken.make_network(config, PretrainModel())
    assert network is not None
    learner = Learner(network[0], objectives, generator=network[1])
    batch = replace(_batch([7] * 3), masked_positions=torch.arange(5), masked_ids=torch.arange(5))
    counted = sum(
        _counted(model, replace(batch, masked_positions=rows))
        for model, rows in ((network[0], None), (network[1], batch.masked_positions))
    )
    assert step_flops(learner, objectives, [batch]) == 3 * counted


def _batch(lengths: list[int]) -> Batch:
    return pack([Example(np.arange(n), np.zeros(n, int)) for n in lengths])


def _counted(model: Model, batch: Batch) -> int:
    """FLOPs of a forward pass, as PyTorch counts them."""
    # PyTorch does not count its fused attention on a CPU.
    fused_off = sdpa_kernel(SDPBackend.MATH)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), fused_off:
        model.eval()(batch)
    return counter.get_total_flops()


def test_longer_sequences_cost_more_than_their_tokens():
    model = Model(CONFIG, [], pooler=False)
    short, long = (training_flops(model, lengths, {}) for lengths in ([8] * 4, [32]))
    assert long - short == 3 * 4 * 4 * (32**2 - 4 * 8**2) * 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_machine_multiplies(dtype: torch.dtype):
    state = torch.get_rng_state()
    assert 1e8 < matmul_rate("cpu", dtype, seconds=0.01) < 1e15
    assert torch.equal(state, torch.get_rng_state())


CODE = """
import resource
from pathlib import Path
import torch
from ownbert.train.device import keep_memory, return_memory

def size():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

keep_memory()
before = size()
torch.ones(64 << 20)
kept = size()
return_memory()
print(before, kept, size())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_memory_is_kept_until_it_is_returned():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    before, kept, after = map(int, done.stdout.split())
    assert kept > before + 200
    assert after < before + 50
