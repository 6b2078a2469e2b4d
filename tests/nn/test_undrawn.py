"""Models for whose weights nothing is drawn."""

import subprocess
import sys

import torch

from ownbert.config import EncoderConfig
from ownbert.nn.model import Model
from ownbert.nn.undrawn import Undrawn

CONFIG = EncoderConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)
SHAPES = """
import sys
from ownbert.config import EncoderConfig
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


def test_counting_parameters_loads_no_compiler():
    done = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True)
    counted = sum(
        p.numel() for p in Model(EncoderConfig(vocab_size=50), ["mlm", "nsp"]).parameters()
    )
    assert done.stdout.splitlines() == [f"{counted} {{'meta'}}", "False"]
