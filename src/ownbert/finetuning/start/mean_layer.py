"""A BERT whose first token holds the mean of all tokens.

A classifier of Transformers reads the first token, through a pooler, but a text vector of a
sentence-transformers folder is usually the mean of all tokens. One more layer computes this mean:
its heads attend to all tokens alike, and what they read is so much larger than the token itself
that LayerNorm leaves nothing else. With a pooler that is nearly linear, the classifier is a linear
model of text vectors, and the folder remains an ordinary BERT.
"""

from dataclasses import replace
from typing import Any, cast

import torch

from ownbert.nn.model import Model
from ownbert.nn.undrawn import materialize, shapes_alone

# Factor of the mean in the heads, relative to the token.
_SIZE = 32.0
# Factor of the mean in the pooler: tanh is nearly linear up to about .5, and after LayerNorm few
# values exceed 3.
_POOLED = 0.2


def is_plain_bert(model: Model) -> bool:
    """Whether a model has the structure of Google's BERT, with any heads."""
    config = model.config
    plain = model.model_type == "bert" and model.decoder is None and not config.pruned_heads
    structure = (config.positions.table, config.head_width, config.norm_first)
    return plain and structure == (True, None, False)


def can_hold_means(model: Model) -> bool:
    """Whether a layer can be added that computes means."""
    return is_plain_bert(model) and not (model.config.layer_gate or model.config.attention_blur)


@torch.no_grad()
def with_mean_layer(model: Model) -> Model:
    """A copy of a model with one more layer and a pooler, without heads, in evaluation mode.

    Args:
        model: must satisfy ``can_hold_means``.
    """
    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    with shapes_alone():
        longer = Model(
            replace(model.config, num_hidden_layers=layers + 1),
            [],
            pooler=True,
            model_type=model.model_type,
        )
    materialize(longer)
    known, identity = dict(model.named_parameters()), torch.eye(width)
    last, added = f"encoder.blocks.{layers - 1}.", f"encoder.blocks.{layers}."
    for name, own in longer.named_parameters():
        if name.startswith(added):  # some of these weights are replaced below
            own.copy_(known[name.replace(added, last)])
        elif name in known:
            own.copy_(known[name])
    block: Any = longer.encoder.blocks[-1]
    attention, pooler = block.attention, cast(Any, longer.pooler)
    for part in (attention.qkv, attention.output, pooler.dense):
        part.weight.zero_()
        part.bias.zero_()
    attention.qkv.weight[-width:] = identity
    attention.output.weight.copy_(_SIZE * identity)
    block.feed_forward.down.weight.zero_()
    block.feed_forward.down.bias.zero_()
    for norm in (m for m in block.modules() if isinstance(m, torch.nn.LayerNorm)):
        norm.weight.fill_(1.0)
        norm.bias.zero_()
    pooler.dense.weight.copy_(_POOLED * identity)
    return longer.eval()
