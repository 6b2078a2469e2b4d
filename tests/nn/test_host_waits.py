"""A training pass never asks a device for a value: on a GPU the host would wait for it each time.

Tensors of the device ``meta`` have no values, so whatever reads one fails there. The pass takes the
ways that are for other devices than a CPU.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.batches.layout import make_layout
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.attention.attend import BACKENDS, AttentionOptions, attend, varlen_unsupported
from ownbert.nn.model import Model
from ownbert.objectives import BagOfWords, CausalLM, MaskedLM, ReplacedToken, SentencePair
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Objective
from ownbert.train.optimizers import make_optimizer
from ownbert.train.step import _clip
from ownbert.train.training_settings import Optim
from support.networks import SMALL

PLAIN = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
CONFIG = replace(SMALL, vocab_size=60, max_position_embeddings=64, **PLAIN)
KINDS = {
    "plain": CONFIG,
    "dropout": replace(CONFIG, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    "rotary": replace(CONFIG, position_embedding_type="rotary"),
    "relative": replace(CONFIG, position_embedding_type="relative_key_query"),
    "alibi": replace(CONFIG, position_embedding_type="alibi"),
    "window": replace(CONFIG, local_attention=8, global_attn_every_n_layers=2),
}
OBJECTIVES: dict[str, tuple[Objective, ...]] = {
    "mlm,bow": (MaskedLM(), BagOfWords(ordinary=torch.ones(60, dtype=torch.bool))),
    "mlm,nsp": (MaskedLM(), SentencePair()),
    "clm": (CausalLM(),),
    "mlm,rtd": (MaskedLM(), ReplacedToken()),
}


def batch(lengths: tuple[int, ...] = (7, 30, 12, 45)) -> Batch:
    rng = np.random.default_rng(0)
    examples = []
    for length in lengths:
        ids, masked = rng.integers(5, 60, length), np.arange(1, length, 6)
        types = np.zeros(length, int)
        examples.append(Example(ids, types, masked, ids[masked], next_sentence=1))
    return pack(examples)


def learn(config: EncoderConfig, objectives: tuple[Objective, ...]) -> None:
    """A pass forwards and backwards, clipping and an update without values."""
    names = {o.name for o in objectives}
    heads = ["mlm", *({"nsp": "nsp", "rtd": "discriminator"}[n] for n in names & {"nsp", "rtd"})]
    model = Model(config, heads, pooler="rtd" not in names)
    generator = Model(config, ["mlm"], pooler=False) if "rtd" in names else None
    learner = Learner(model, objectives, generator=generator).to("meta")
    optimizer = make_optimizer(learner, Optim(name="lamb"))  # a fused one refuses this device
    losses = learner(batch().to(model.device))
    torch.stack([loss.total for loss in losses.values()]).sum().backward()
    assert _clip(learner, 1.0).device.type == "meta"
    optimizer.step()


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_no_model_reads_a_value(config: EncoderConfig):
    learn(config, OBJECTIVES["mlm,bow"])


@pytest.mark.parametrize("objectives", OBJECTIVES.values(), ids=OBJECTIVES)
def test_no_objective_reads_a_value(objectives: tuple[Objective, ...]):
    learn(CONFIG, objectives)


def test_the_kernel_for_packed_sequences_is_called_as_it_must_be():
    layout = make_layout([5, 15], "meta")
    x = torch.randn(20, 2, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    reason = varlen_unsupported(x, layout)
    assert reason == "requires a GPU, not meta"
    for chosen in (layout, replace(layout, causal=True), layout.within(3)):
        out, _ = BACKENDS["varlen"].run(x, x, x, chosen, AttentionOptions())
        assert (out.shape, out.dtype) == (x.shape, x.dtype)
        out.sum().backward()


def kept_bytes(length: int) -> int:
    """What the backward pass of attention keeps."""
    x = torch.randn(length, 3, 1, 8, requires_grad=True)
    sizes: dict[int, int] = {}

    def pack_one(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack_one, lambda tensor: tensor):
        attend(*x.unbind(1), make_layout([length]))
    return sum(sizes.values())


def test_what_long_sequences_keep_for_the_backward_pass_grows_linearly():
    assert kept_bytes(4096) < 2.2 * kept_bytes(2048)
