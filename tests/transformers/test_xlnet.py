"""XLNet with Transformers' API: both streams, permutations, memory, and what is refused."""

from typing import Any

import pytest
import torch

import ownbert
from ownbert.exceptions import InputError
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
    first, second = both(architecture, given, **changes)
    assert list(second) == list(first)
    close(tuple(second.to_tuple()), tuple(first.to_tuple()))
    return second


CASES: dict[str, dict[str, Any]] = {
    "plain": {"input_ids": IDS},
    "types": {"input_ids": IDS, "token_type_ids": TYPES, "output_hidden_states": True},
    "weights": {"input_ids": IDS, "output_attentions": True, "head_mask": torch.rand(2, 4)},
    "no mems": {"input_ids": IDS, "use_mems": False},
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
        "use_mems": True,
    },
    "predicted, twice and never": {
        "input_ids": IDS,
        "target_mapping": mapping([[0, 7], [3, 3], [5, 6]]) * torch.tensor([1, 0.0])[:, None],
    },
    "input_mask": {"input_ids": IDS, "input_mask": 1 - LEFT, "use_mems": True},
    "gaps": {"input_ids": IDS, "attention_mask": LEFT * (torch.arange(8) != 6), "use_mems": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("architecture", ["XLNetModel", "XLNetLMHeadModel"])
def test_the_same_at_every_place(architecture: str, case: str):
    same(architecture, CASES[case])


@pytest.mark.parametrize("architecture", ["XLNetModel", "XLNetLMHeadModel"])
@pytest.mark.parametrize("settings", [{}, {"mem_len": 5}, {"mem_len": 0}, {"reuse_len": 3}])
def test_a_memory(architecture: str, settings: dict[str, Any]):
    theirs, ours = pair(architecture, **settings)
    given = {"input_ids": IDS, "token_type_ids": TYPES, "use_mems": True}
    with torch.no_grad():
        first, second = theirs(**given), ours(**given)
        close(second.mems, first.mems)
        for further in ({}, {"attention_mask": LEFT}, CASES["predicted"]):
            again = {**given, "input_ids": IDS.flip(1), **further}
            one, two = theirs(**again, mems=first.mems), ours(**again, mems=second.mems)
            close(two.to_tuple(), one.to_tuple())
    assert (
        len(second.mems[0])
        == {5: 5, 0: 8, 512: 3 if "reuse_len" in settings else 8}[settings.get("mem_len", 512)]
    )


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


def test_choices_with_masks_of_either_kind():
    ids, mask = torch.stack((IDS, IDS.flip(1)), 1), torch.stack((LEFT, LEFT.flip(1)), 1)
    for masks in ({"attention_mask": mask}, {"input_mask": 1 - mask}):
        given = {"input_ids": ids, **masks, "labels": torch.tensor([1, 0, 1])}
        first, second = both("XLNetForMultipleChoice", given)
        assert_close(second.logits, first.logits)
        assert_close(second.loss, first.loss)


def test_the_loss_of_predicted_tokens():
    labels = {"labels": IDS[:, :2].contiguous(), "target_mapping": mapping([[1, 2]] * 3)}
    first, second = both("XLNetLMHeadModel", {"input_ids": IDS, **labels})
    assert_close(second.loss, first.loss)


@pytest.mark.parametrize(
    "further",
    [
        {},
        {
            "p_mask": (torch.arange(8) < 2).float().expand(3, 8),
            "cls_index": torch.tensor([7, 3, 6]),
        },
        {"start_positions": torch.tensor([5, 6, 6]), "end_positions": torch.tensor([6, 7, 7])},
        {
            "start_positions": torch.tensor([5, 6, 6]),
            "end_positions": torch.tensor([6, 7, 7]),
            "cls_index": torch.tensor([7, 3, 6]),
            "is_impossible": torch.tensor([0.0, 1.0, 0.0]),
        },
    ],
)
def test_answers_by_a_search_of_starts_and_ends(further: dict[str, torch.Tensor]):
    settings = {"start_n_top": 4, "end_n_top": 3}
    for mask in (None, LEFT, LEFT.flip(1)):
        given = {"input_ids": IDS, "attention_mask": mask, "use_mems": False, **further}
        found = same("XLNetForQuestionAnswering", given, **settings)
    if "loss" not in found:
        assert found.end_top_index.shape == (3, 12)


def test_a_neighbour_and_padding_change_nothing():
    _, ours = pair("XLNetModel")
    alone = ours(input_ids=IDS[:1, 3:], token_type_ids=TYPES[:1, 3:]).last_hidden_state[0]
    mask = torch.tensor([[0] * 3 + [1] * 5, [1] * 8])
    for other in (IDS[1], IDS[2]):
        ids, types = torch.stack((IDS[0], other)), TYPES[[0, 1]]
        for mems in (None, False):
            found = ours(input_ids=ids, token_type_ids=types, attention_mask=mask, use_mems=mems)
            assert_close(found.last_hidden_state[0, 3:], alone)
            assert bool(found.last_hidden_state[0, :3].any()) == (mems is None)


def test_far_tokens_have_the_same_distances():
    ids = torch.randint(6, 60, (1, 700), generator=torch.Generator().manual_seed(0))
    same("XLNetModel", {"input_ids": ids, "use_mems": False}, n_layer=1)


def test_gradients_reach_every_weight_of_both_streams():
    _, ours = pair("XLNetLMHeadModel")
    given = {k: v for k, v in CASES["predicted"].items() if not k.startswith("output")}
    ours.train()(**given, labels=IDS[:, :2]).loss.backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_what_it_cannot_do_is_refused():
    _, ours = pair("XLNetForSequenceClassification")
    _, base = pair("XLNetModel")
    _, beam = pair("XLNetForQuestionAnswering")
    mems = base(input_ids=IDS, use_mems=True).mems
    wrong = [
        (lambda: ours(IDS, target_mapping=mapping([[1]] * 3)), "target_mapping needs a model that"),
        (lambda: ours(IDS, attention_mask=LEFT, input_mask=LEFT), "attention_mask or input_mask"),
        (
            lambda: base(IDS, perm_mask=LEFT),
            r"perm_mask has shape \(3, 8\); it must be \(3, 8, 8\)",
        ),
        (lambda: base(IDS, target_mapping=LEFT), "it must be .3, predictions, 8."),
        (
            lambda: base(IDS, mems=mems[:1]),
            "mems must be 2 tensors of shape .tokens, batch, 32",
        ),
        (lambda: base(IDS[:2], mems=mems), "of 3 texts, the input has 2"),
        (lambda: base(IDS, token_type_ids=IDS), "there are 8 segments, 0..7"),
        (lambda: ownbert.XLNetConfig(attn_type="uni"), "attn_type is 'uni'; it must be 'bi'"),
        (lambda: beam(IDS[:, :2]), "start_n_top is 3 and end_n_top 2, but the input has 2 tokens"),
    ]
    for call, message in wrong:
        with pytest.raises((InputError, AttributeError), match=message):
            call()
