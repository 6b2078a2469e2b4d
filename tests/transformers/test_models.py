"""Models called as every class of Transformers 4.57.6: arguments, outputs, losses, gradients."""

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert  # noqa: E402
from support.floats import assert_close  # noqa: E402
from support.padded_models import arguments, close, gradients, padded, pair  # noqa: E402
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
    if len(kinds) == 2:
        other = "next_sentence_label" if kinds[1] == "nsp" else "sentence_order_label"
        return {"labels": at_tokens, other: numbers(2, count)}
    if kinds == ("discriminator",):
        return {"labels": numbers(2, *mask.shape)}
    if kinds in (("mlm",), ("tokens",)):
        return {"labels": at_tokens}
    return {"labels": numbers(2, count)} if kinds else {}


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        case
        for case in MOSTLY_SLOW
        if "XLNetForQuestionAnswering" not in getattr(case, "values", case)
    ],
)
def test_the_same_numbers(model_type: str, architecture: str):
    kind = getattr(ownbert, architecture)
    decoder = {"is_decoder": True} if kind.spec.decoder else {}
    theirs, ours = pair(architecture, **decoder)
    names = [name for name in arguments(type(theirs)) if name != "cache_position"]
    kinds = kind.spec.kinds
    assert list(ours.padded_call.arguments) == names

    given: dict[str, Any] = padded(model_type)
    if "token_type_ids" in names and kind.family.weight_map.prefix != "roberta.":
        given["token_type_ids"] = given["input_ids"] % 2
    # Theirs does not flatten the task types of choices.
    if "task_type_ids" in names and kinds != ("choice",):
        given["task_type_ids"] = given["input_ids"] % 3
    mask = given["attention_mask"]
    targets = labels(kinds, mask)
    if kinds == ("choice",):
        given = {name: value[:, None].repeat(1, 2, 1) for name, value in given.items()}
        given["input_ids"][:, 1, 0] += 1
        mask = given["attention_mask"].flatten(0, 1)
    keep = None if kinds == ("span",) else mask.bool()
    if "use_mems" in names:
        given["use_mems"] = False
    heads = torch.rand(ours.config.num_hidden_layers, 4)
    for extra in (
        targets,
        {"output_hidden_states": True, "output_attentions": True},
        {"head_mask": heads} if "head_mask" in names else {},
    ):
        with torch.no_grad():
            expected, found = theirs(**given, **extra), ours(**given, **extra)
        compare(found, expected, keep)
        plain = ours(**given, **extra, return_dict=False)
        assert len(plain) == len(found)
        close(plain[0], found[0])
    if targets:
        if kinds == ("span",):  # which read padding, whose position we train
            given["input_ids"] = given["input_ids"].masked_fill(mask == 0, 5)
            given["attention_mask"] = torch.ones_like(mask)
        for model in (theirs, ours):
            model(**given, **targets)[0].backward()
        expected, found = gradients(theirs, ours)
        assert len(expected) > 0.9 * len(found)
        for name, gradient in expected.items():
            assert_close(found[name], gradient, name=name)


def compare(found: Any, expected: Any, keep: torch.Tensor | None) -> None:
    caches = {"past_key_values"}
    assert [k for k in found if k not in caches] == [k for k in expected if k not in caches]
    for name in expected.keys() - caches:
        close(found[name], expected[name], keep)
        assert found[name] is getattr(found, name)
    assert found.to_tuple()[0] is found[0]
