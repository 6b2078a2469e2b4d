"""Decoder mode: causal masks, cross attention and caches, against Transformers 4.57.6."""

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert  # noqa: E402
from ownbert.exceptions import InputError  # noqa: E402
from support.padded_models import close, padded, pair  # noqa: E402

KINDS = ["absolute", "relative_key", "relative_key_query"]
DECODER = {"is_decoder": True, "add_cross_attention": True}


def encoded(seed: int = 0) -> dict[str, torch.Tensor]:
    """What a decoder attends to: (3, 7, 32), padded."""
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    hidden = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(seed))
    return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("mask", ["right", "left", "pairs"])
def test_a_decoder(kind: str, cached: bool, mask: str):
    if cached and kind != "absolute":
        pytest.skip("with a cache, theirs takes all distances from the last token")
    theirs, ours = pair("BertModel", position_embedding_type=kind, **DECODER)
    given = padded() | encoded()
    if mask == "left":
        given["attention_mask"] = given["attention_mask"].flip(1)
    elif mask == "pairs":
        draw = torch.Generator().manual_seed(2)
        given["attention_mask"] = (torch.rand(3, 9, 9, generator=draw) < 0.7).long()
        given["encoder_attention_mask"] = (torch.rand(3, 9, 7, generator=draw) < 0.7).long()
    extra: dict[str, Any] = {"output_attentions": True, "use_cache": cached}
    with torch.no_grad():
        expected, found = theirs(**given, **extra), ours(**given, **extra)
    keep = given["attention_mask"]
    keep = keep.bool() if keep.ndim == 2 else None
    for name in ("last_hidden_state", "attentions", "cross_attentions"):
        close(found[name], expected[name], keep)
    assert ("past_key_values" in found) == cached


@pytest.mark.parametrize("kind", [*KINDS, "sinusoidal", "rotary", "alibi"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_cache_changes_nothing(kind: str, cross: bool, steps: int):
    torch.manual_seed(4)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = ownbert.BertConfig(
        vocab_size=60,
        position_embedding_type=kind,
        is_decoder=True,
        add_cross_attention=cross,
        intermediate_size=48,
        max_position_embeddings=40,
        **sizes,
    )
    ours = ownbert.BertLMHeadModel(config).eval()
    ids = torch.randint(3, 60, (3, 9))
    extra = encoded() if cross else {}
    whole = ours(ids, use_cache=False, **extra).logits
    assert "past_key_values" not in ours(ids, use_cache=False, **extra)
    past, parts = None, []
    for part in (ids[:, :3], *ids[:, 3:].split(steps, 1)):
        out = ours(part, past_key_values=past, use_cache=True, **extra)
        past = out.past_key_values
        parts.append(out.logits)
    close(torch.cat(parts, 1), whole)
    assert past.length == 9


def test_cross_attention_that_is_not_there():
    _, ours = pair("BertModel", is_decoder=True)
    with pytest.raises(InputError, match="add_cross_attention true"):
        ours(**padded(), **encoded())
