"""Random tiny models of Transformers 4.57.6 and ours of the same weights."""

import inspect
import tempfile
from typing import Any

import torch
import transformers

import ownbert
from ownbert.families import FAMILIES
from support.floats import assert_close

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
OTHERS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16, "num_hidden_layers": 3},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 4,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "conv_kernel_size": 3,
        "type_vocab_size": 2,
    },
    "electra": {"embedding_size": 16},
    "ernie": {"use_task_id": True},
    "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 16},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 4, "pad_token_id": 1},
}
DISTILBERT = {
    "vocab_size": 60,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 40,
}
T5 = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 10,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 7,
}
OWN_KEYS = {"distilbert": DISTILBERT, "t5": T5}


def sizes(model_type: str) -> dict[str, Any]:
    if model_type in OWN_KEYS:
        return dict(OWN_KEYS[model_type])
    found = {**SIZES, **OTHERS.get(model_type, {})}
    if model_type == "xlnet":  # by its own names, as the size of a head follows from them alone
        del found["max_position_embeddings"]  # which it has not
        names = FAMILIES[model_type].names
        found = {names.get(name, name): value for name, value in found.items()}
    return found


def pair(architecture: str, seed: int = 0, **changes: Any) -> tuple[Any, Any]:
    """Theirs and ours, in evaluation mode, every weight random (the padding's row zero)."""
    family = getattr(ownbert, architecture).family
    torch.manual_seed(seed)
    kind = getattr(transformers, architecture)
    config = kind.config_class(**{**sizes(family.model_type), **changes})
    config._attn_implementation = "eager"
    theirs = kind(config).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    words = theirs.get_input_embeddings()
    if words.padding_idx is not None:  # XLNet has a row like any other
        words.weight.data[words.padding_idx] = 0
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, ownbert.load(folder)


def padded(model_type: str = "bert", size: tuple[int, int] = (3, 9)) -> dict[str, torch.Tensor]:
    """ids and a mask with padding on the right of two texts."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 60, size, generator=generator)
    mask = torch.ones(size, dtype=torch.long)
    mask[0, 6:], mask[1, 3:] = 0, 0
    pad = FAMILIES[model_type].defaults["pad_token_id"]
    ids[mask == 0] = sizes(model_type).get("pad_token_id", pad)
    return {"input_ids": ids, "attention_mask": mask}


def arguments(kind: Any) -> list[str]:
    """Names of the arguments of a forward pass."""
    parameters = inspect.signature(kind.forward).parameters
    return [n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD and n != "self"]


def gradients(theirs: Any, ours: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The gradients of both, by the names of ours."""
    family = FAMILIES[ours.model_type]
    expected = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    full = {family.weight_map.full_name(name): gradient for name, gradient in expected.items()}
    found = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    mapped, _ = family.weight_map.to_ours(full, ours.config, tuple(ours.specs), other_heads=True)
    return mapped, found


def close(ours: Any, theirs: Any, keep: torch.Tensor | None = None) -> None:
    """Equal but for rounding, tuples part by part; with ``keep`` (B, S) only at those places."""
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            close(one, other, keep)
        return
    assert ours.shape == theirs.shape
    if keep is not None and theirs.ndim == 4:
        ours, theirs = (x * keep[:, None, :, None] for x in (ours, theirs))
    elif keep is not None and theirs.shape[:2] == keep.shape:
        ours, theirs = ours[keep], theirs[keep]
    assert_close(ours, theirs)
