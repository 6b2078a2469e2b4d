"""Every class of ownbert.hf against Transformers 4.57.6: arguments, outputs, losses."""

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert.hf as hf  # noqa: E402
from support.padded_models import arguments, close, padded, pair  # noqa: E402
from support.parity_models import MOSTLY_SLOW  # noqa: E402


def labels(kinds: tuple[str, ...], mask: torch.Tensor) -> dict[str, Any]:
    """Labels as the heads want them."""
    draw = torch.Generator().manual_seed(2)
    count = len(mask)

    def numbers(most: int, *size: int) -> torch.Tensor:
        return torch.randint(0, most, size, generator=draw)

    at_tokens = torch.where(mask.bool(), numbers(2, *mask.shape), -100)
    if kinds == ("span",):
        return {"start_positions": numbers(3, count), "end_positions": numbers(12, count)}
    if kinds == ("beam_span",):
        return {"start_positions": numbers(3, count), "end_positions": numbers(9, count)}
    if len(kinds) == 2:
        other = "next_sentence_label" if kinds[1] == "nsp" else "sentence_order_label"
        return {"labels": at_tokens, other: numbers(2, count)}
    if kinds == ("discriminator",):
        return {"labels": numbers(2, *mask.shape)}
    if kinds in (("mlm",), ("tokens",)):
        return {"labels": at_tokens}
    return {"labels": numbers(2, count)} if kinds else {}


@pytest.mark.parametrize(("model_type", "architecture"), MOSTLY_SLOW)
def test_the_same_numbers(model_type: str, architecture: str, tmp_path):
    kind = getattr(hf, architecture)
    decoder = {"is_decoder": True} if kind.family.architectures[architecture].decoder else {}
    theirs, ours = pair(architecture, **decoder)
    names = arguments(type(theirs))
    assert arguments(kind) == names

    given: dict[str, Any] = padded(model_type)
    if "token_type_ids" in names and kind.family.weight_map.prefix != "roberta.":
        given["token_type_ids"] = given["input_ids"] % 2
    # Theirs does not flatten the task types of choices.
    if "task_type_ids" in names and ours.kinds != ("choice",):
        given["task_type_ids"] = given["input_ids"] % 3
    mask = given["attention_mask"]
    targets = labels(ours.kinds, mask)
    if ours.kinds == ("choice",):
        given = {name: value[:, None].repeat(1, 2, 1) for name, value in given.items()}
        given["input_ids"][:, 1, 0] += 1
        mask = given["attention_mask"].flatten(0, 1)
    keep = None if ours.kinds == ("span",) else mask.bool()
    heads = torch.rand(ours.model.config.num_hidden_layers, 4)
    for extra in (
        targets,
        {"output_hidden_states": True, "output_attentions": True},
        {"head_mask": heads} if "head_mask" in names else {},
        {**targets, "return_dict": False, "output_hidden_states": True},
    ):
        with torch.no_grad():
            expected, found = theirs(**given, **extra), ours(**given, **extra)
        compare(found, expected, keep)


def compare(found: Any, expected: Any, keep: torch.Tensor | None) -> None:
    if isinstance(expected, tuple):
        tensors = [x for x in expected if isinstance(x, torch.Tensor | tuple)]
        mine = [x for x in found if isinstance(x, torch.Tensor | tuple)]
        close(tuple(mine), tuple(tensors), keep)
        return
    caches = {"past_key_values"}
    assert [k for k in found if k not in caches] == [k for k in expected if k not in caches]
    for name in expected.keys() - caches:
        close(found[name], expected[name], keep)
        assert found[name] is getattr(found, name)
    assert found.to_tuple()[0] is found[0]


@pytest.mark.parametrize(("model_type", "architecture"), MOSTLY_SLOW)
def test_what_is_saved_loads_there_whole(model_type: str, architecture: str, tmp_path):
    kind = getattr(hf, architecture)
    family = kind.family
    decoder = {"is_decoder": True} if family.architectures[architecture].decoder else {}
    theirs, ours = pair(architecture, seed=3, **decoder)
    ours.save_pretrained(tmp_path)
    again, info = type(theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert all(not info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = theirs.state_dict()
    assert again.state_dict().keys() == state.keys()
    for name, tensor in again.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    assert ours.state_dict().keys() == state.keys()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    fresh = kind(ours.config)
    fresh.load_state_dict(state)
    close(fresh.eval()(**once(ours)).to_tuple()[0], ours(**once(ours)).to_tuple()[0])


def once(model: Any) -> dict[str, torch.Tensor]:
    """One text without padding."""
    ids = torch.tensor([[5, 9, 7, 30]])
    return {"input_ids": ids[:, None] if model.kinds == ("choice",) else ids}
