"""XLNet with Transformers' API: both streams, permutations, and what is refused."""

from typing import Any

import pytest
import torch

from support.floats import assert_close
from support.padded_models import close, pair

SIZE = 3, 8
IDS = torch.randint(6, 60, SIZE, generator=torch.Generator().manual_seed(3))
LEFT = (torch.arange(8) >= torch.tensor([0, 3, 5])[:, None]).long()
TYPES = torch.randint(0, 3, SIZE, generator=torch.Generator().manual_seed(4))


def permutation(seed: int = 0) -> torch.Tensor:
    """(B, S, S), 1 where a token stands later in an order drawn at random, or is the other."""
    generator = torch.Generator().manual_seed(seed)
    rank = torch.stack([torch.randperm(SIZE[1], generator=generator) for _ in range(SIZE[0])])
    return (rank[:, :, None] <= rank[:, None]).float()


def mapping(places: list[list[int]]) -> torch.Tensor:
    """(B, P, S), of predictions at these places."""
    return torch.nn.functional.one_hot(torch.tensor(places), SIZE[1]).float()


def both(architecture: str, given: dict[str, Any], **changes: Any) -> tuple[Any, Any]:
    theirs, ours = pair(architecture, **changes)
    with torch.no_grad():
        return theirs(**given), ours(**given)


def same(architecture: str, given: dict[str, Any], **changes: Any) -> Any:
    """All outputs of ours, which are those of theirs at every place."""
    theirs, ours = pair(architecture, **changes)
    ours.padded_call.skips_padding = False
    with torch.no_grad():
        first, second = theirs(**given, use_mems=False), ours(**given, use_mems=False)
    assert list(second) == list(first)
    close(tuple(second.to_tuple()), tuple(first.to_tuple()))
    return second


CASES: dict[str, dict[str, Any]] = {
    "plain": {"input_ids": IDS},
    "types": {"input_ids": IDS, "token_type_ids": TYPES, "output_hidden_states": True},
    "weights": {"input_ids": IDS, "output_attentions": True, "head_mask": torch.rand(2, 4)},
    "permuted": {"input_ids": IDS, "perm_mask": permutation(), "token_type_ids": TYPES},
    "predicted": {
        "input_ids": IDS,
        "perm_mask": permutation(1),
        "target_mapping": mapping([[0, 7], [3, 1], [5, 6]]),
        "token_type_ids": TYPES,
        "output_hidden_states": True,
        "output_attentions": True,
    },
    "predicted, all": {
        "input_ids": IDS,
        "perm_mask": permutation(2),
        "target_mapping": torch.eye(8).expand(3, 8, 8),
        "attention_mask": LEFT,
    },
    "predicted, twice and never": {
        "input_ids": IDS,
        "target_mapping": mapping([[0, 7], [3, 3], [5, 6]]) * torch.tensor([1, 0.0])[:, None],
    },
    "gaps": {"input_ids": IDS, "attention_mask": LEFT * (torch.arange(8) != 6)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("architecture", ["XLNetModel", "XLNetLMHeadModel"])
def test_the_same_at_every_place(architecture: str, case: str):
    same(architecture, CASES[case])


HEADS = [
    ("XLNetForSequenceClassification", {}),
    ("XLNetForSequenceClassification", {"summary_type": "first"}),
    ("XLNetForSequenceClassification", {"summary_type": "mean"}),
    ("XLNetForTokenClassification", {}),
    ("XLNetForQuestionAnsweringSimple", {}),
]


@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize(("architecture", "settings"), HEADS)
def test_padding_on_either_side(architecture: str, settings: dict[str, Any], side: str):
    mask = {"left": LEFT, "right": LEFT.flip(1), "none": None}[side]
    given = {"input_ids": IDS, "token_type_ids": TYPES, "attention_mask": mask}
    first, second = both(architecture, given, **settings)
    keep = torch.ones(SIZE, dtype=torch.bool) if mask is None else mask.bool()
    for name in ("logits", "start_logits", "end_logits"):
        if name in first:
            close(second[name], first[name], keep)


def test_choices():
    ids, mask = torch.stack((IDS, IDS.flip(1)), 1), torch.stack((LEFT, LEFT.flip(1)), 1)
    given = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([1, 0, 1])}
    first, second = both("XLNetForMultipleChoice", given)
    assert_close(second.logits, first.logits)
    assert_close(second.loss, first.loss)


def test_the_loss_of_predicted_tokens():
    labels = {"labels": IDS[:, :2].contiguous(), "target_mapping": mapping([[1, 2]] * 3)}
    first, second = both("XLNetLMHeadModel", {"input_ids": IDS, **labels})
    assert_close(second.loss, first.loss)


def test_a_neighbour_and_padding_change_nothing():
    _, ours = pair("XLNetModel")
    alone = ours(input_ids=IDS[:1, 3:], token_type_ids=TYPES[:1, 3:]).last_hidden_state[0]
    mask = torch.tensor([[0] * 3 + [1] * 5, [1] * 8])
    for other in (IDS[1], IDS[2]):
        ids, types = torch.stack((IDS[0], other)), TYPES[[0, 1]]
        found = ours(input_ids=ids, token_type_ids=types, attention_mask=mask)
        assert_close(found.last_hidden_state[0, 3:], alone)
        assert not bool(found.last_hidden_state[0, :3].any())


def test_far_tokens_have_the_same_distances():
    ids = torch.randint(6, 60, (1, 700), generator=torch.Generator().manual_seed(0))
    same("XLNetModel", {"input_ids": ids}, n_layer=1)


def test_gradients_reach_every_weight_of_both_streams():
    _, ours = pair("XLNetLMHeadModel")
    given = {k: v for k, v in CASES["predicted"].items() if not k.startswith("output")}
    ours.train()(**given, labels=IDS[:, :2]).loss.backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
