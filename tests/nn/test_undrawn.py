"""Models for whose weights nothing is drawn."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ownbert.batches.batch import Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.model import Model
from ownbert.nn.undrawn import Undrawn, materialize, shapes_alone, truncated_normal_

CONFIG = EncoderConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)
SHAPES = """
import sys
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
with shapes_alone():
    model = Model(EncoderConfig(vocab_size=50), ["mlm", "nsp"])
print(sum(p.numel() for p in model.parameters()), {p.device.type for p in model.parameters()})
print("torch._dynamo" in sys.modules)
"""


def test_nothing_is_drawn():
    state = torch.get_rng_state()
    with Undrawn():
        Model(CONFIG, ["mlm"])
    assert torch.equal(torch.get_rng_state(), state)
    Model(CONFIG, ["mlm"])
    assert not torch.equal(torch.get_rng_state(), state)


def test_what_lies_in_memory_is_left_alone():
    there = torch.full((3, 5), 1e30)
    with Undrawn():
        assert truncated_normal_(there, 0.02) is there
        nn.init.normal_(there)
    assert there.eq(1e30).all()
    assert truncated_normal_(there, 0.02).abs().max() <= 0.04


def test_counting_parameters_loads_no_compiler():
    done = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True)
    with Undrawn():
        model = Model(EncoderConfig(vocab_size=50), ["mlm", "nsp"])
    counted = sum(p.numel() for p in model.parameters())
    assert done.stdout.splitlines() == [f"{counted} {{'meta'}}", "False"]


def test_shapes_become_a_model_that_computes_the_same():
    """Also what is in no file, the slopes of ALiBi, and a matrix that two layers share."""
    config = replace(CONFIG, position_embedding_type="alibi")
    with shapes_alone():
        model = Model(config, ["mlm"]).eval()
    assert {p.device.type for p in (*model.parameters(), *model.buffers())} == {"meta"}
    materialize(model)
    other = Model(config, ["mlm"]).eval()
    own, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    assert own.keys() == theirs.keys()
    for name, parameter in own.items():
        parameter.data.copy_(theirs[name])
    ids, at = np.arange(5, 12), np.asarray([2, 4])
    batch = pack([Example(ids, 0 * ids, masked_positions=at, masked_ids=ids[at])])
    assert torch.equal(model(batch).logits["mlm"], other(batch).logits["mlm"])
