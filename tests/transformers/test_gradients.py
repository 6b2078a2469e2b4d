"""Gradients at hidden states and attention weights: what is returned leads to the logits."""

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

from support.floats import assert_close  # noqa: E402
from support.padded_models import padded, pair  # noqa: E402

BOTH = {"output_hidden_states": True, "output_attentions": True}
ARCHITECTURES = (
    *("BertForSequenceClassification", "BertForTokenClassification", "AlbertForMaskedLM"),
    *("DebertaV2ForTokenClassification", "ModernBertForMaskedLM", "MobileBertModel"),
    *("T5ForTokenClassification", "BertModel"),
)


def gradients(out: Any, mask: torch.Tensor) -> list[torch.Tensor]:
    """Of the first text's first answer, at what stands before it, zero at padding."""
    states, weights = list(out.hidden_states), list(out.attentions)
    answer = out[1] if "pooler_output" in out else out[0]
    wanted = [*states[:-1], *weights]
    found = torch.autograd.grad(answer[0, 0].sum(), wanted, retain_graph=True)
    for tensor in wanted:
        tensor.retain_grad()
    answer[0, 0].sum().backward()
    for tensor, gradient in zip(wanted, found, strict=True):
        torch.testing.assert_close(tensor.grad, gradient)
    rows = mask.bool()
    return [
        g * (rows[:, None, :, None] & rows[:, None, None]) if g.ndim == 4 else g * rows[..., None]
        for g in found
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("packed", [True, False])
def test_gradients_at_what_is_returned(architecture: str, packed: bool):
    theirs, ours = pair(architecture)
    ours.padded_call.skips_padding = packed
    given = padded(ours.model_type)
    expected = gradients(theirs(**given, **BOTH), given["attention_mask"])
    found = gradients(ours(**given, **BOTH), given["attention_mask"])
    for mine, other in zip(found, expected, strict=True):
        assert_close(mine, other)


def test_masked_heads_and_a_pooled_vector():
    theirs, ours = pair("BertModel")
    heads = torch.tensor([[0.0, 1, 0.5, 1], [1, 1, 0, 1]])
    given = padded()
    found = []
    for model in (theirs, ours):
        out = model(**given, head_mask=heads, output_attentions=True)
        at = out.pooler_output[2].sum()
        found.append(torch.autograd.grad(at, [out.attentions[0], out.last_hidden_state]))
    for mine, other in zip(found[1], found[0], strict=True):
        assert_close(mine[2], other[2])


def test_gradients_of_cross_attention():
    found = []
    source = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0))
    for model in pair("BertLMHeadModel", is_decoder=True, add_cross_attention=True):
        out = model(**padded(), encoder_hidden_states=source, use_cache=False, **BOTH)
        wanted = [out.attentions[0], out.cross_attentions[1], out.hidden_states[1]]
        found.append(torch.autograd.grad(out.logits[2, 4, 7], wanted))
    for mine, other in zip(found[1], found[0], strict=True):
        assert_close(mine[2], other[2])  # a text without padding
