"""Kept weights, masks of heads, and pruning."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ownbert.config.encoder import EncoderConfig
from ownbert.config.position_kinds import POSITIONS
from ownbert.config.variants import Mobile
from ownbert.exceptions import InputError
from ownbert.nn.context import Context
from ownbert.nn.model import Model, Outputs
from support.networks import SMALL, random_batch

CONFIG = replace(SMALL, num_hidden_layers=3, num_attention_heads=4)
LENGTHS = (5, 1, 16, 9)
KINDS = {kind: replace(CONFIG, position_embedding_type=kind) for kind in POSITIONS} | {
    "bottleneck": replace(CONFIG, embedding_size=8, mobile=Mobile(intra_bottleneck_size=8)),
    "decoder": replace(CONFIG, is_decoder=True),
}


def make(config: EncoderConfig = CONFIG) -> Model:
    torch.manual_seed(0)
    model = Model(config).eval()
    for parameter in model.parameters():  # biases too
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def ask(model: Model, *, head_mask: Tensor | None = None, keep: tuple[int, ...] = ()) -> Outputs:
    given = random_batch(LENGTHS)
    context = model.encoder.plain_context(given)
    context = replace(context, head_mask=head_mask, keep=frozenset(keep))
    return model(given, context=context, keep_hidden=True)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_kept_weights_are_the_ones_used(config: EncoderConfig):
    model = make(config)
    inside: list[Tensor] = []
    attention = model.encoder.blocks[1].attention
    hook = attention.output.register_forward_hook(lambda m, i, o: inside.append(i[0]))
    with torch.no_grad():
        found = ask(model, keep=(1,))
        plain = ask(model)
    hook.remove()
    assert found.attentions.keys() == {1}
    assert plain.attentions == {}
    torch.testing.assert_close(found.hidden, plain.hidden, atol=1e-5, rtol=1e-5)
    shapes = [tuple(w.shape) for w in found.attentions[1]]
    assert shapes == [(4, n, n) for n in LENGTHS]
    for w in found.attentions[1]:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:2]))
        assert bool((w >= 0).all())
        if config.is_decoder:
            assert not bool(w.triu(1).any())
    if config.mobile is None:
        # Of the values they make what goes into the output matrix.
        values = attention.project(found.hidden_states[1])[2].split(LENGTHS)
        parts = [
            torch.einsum("hij,jhk->ihk", w, v)
            for w, v in zip(found.attentions[1], values, strict=True)
        ]
        torch.testing.assert_close(torch.cat(parts).flatten(1), inside[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(inside[0], inside[1], atol=1e-5, rtol=1e-5)
    else:
        torch.testing.assert_close(inside[0], inside[1], atol=1e-5, rtol=1e-5)


def test_hidden_states_are_those_between_the_layers():
    model, given = make(), random_batch(LENGTHS)
    with torch.no_grad():
        found = ask(model)
        again = found.hidden_states[1]
        for number in (1, 2):
            again = model.encoder.blocks[number](again, Context(given.layout, given.positions))
    assert len(found.hidden_states) == 4
    assert torch.equal(found.hidden_states[-1], found.hidden)
    torch.testing.assert_close(again, found.hidden)
    assert model(random_batch(LENGTHS)).hidden_states == ()


def scaled_by_hand(model: Model, layer: int, scale: Tensor) -> Model:
    """The model whose output matrix of a layer is multiplied by the factors (H) of its heads."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        output = other.encoder.blocks[layer].attention.output.weight
        output.mul_(scale.repeat_interleave(other.config.head_size))
    return other


def test_a_mask_of_heads_by_layer():
    model = make()
    mask = torch.tensor([[1.0, 0, 0.5, 2], [0, 0, 0, 0], [1, 1, 1, 1]])
    other = scaled_by_hand(scaled_by_hand(model, 0, mask[0]), 1, mask[1])
    with torch.no_grad():
        found = ask(model, head_mask=mask, keep=(0, 2))
        torch.testing.assert_close(
            found.hidden, other(random_batch(LENGTHS)).hidden, atol=1e-5, rtol=1e-5
        )
        # What is kept is scaled too, as in Transformers.
        torch.testing.assert_close(
            found.attentions[0][2].sum(-1), mask[0][:, None].expand(-1, LENGTHS[2])
        )
        assert not torch.allclose(found.hidden, ask(model).hidden, atol=1e-3)
        assert torch.equal(ask(model, head_mask=torch.ones(3, 4)).hidden, ask(model).hidden)


def test_a_mask_of_heads_by_layer_and_example():
    model = make()
    mask = torch.rand(3, len(LENGTHS), 4, generator=torch.Generator().manual_seed(1))
    mask[2, 1] = 0
    with torch.no_grad():
        together = ask(model, head_mask=mask, keep=(1,))
        for b, rows in enumerate(together.hidden.split(LENGTHS)):
            alone = model
            for layer in range(3):
                alone = scaled_by_hand(alone, layer, mask[layer, b])
            expected = alone(random_batch(LENGTHS)).hidden.split(LENGTHS)[b]
            torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                together.attentions[1][b].sum(-1), mask[1, b][:, None].expand(-1, LENGTHS[b])
            )


def test_a_mask_of_heads_learns():
    model = make()
    mask = torch.ones(3, 4, requires_grad=True)
    ask(model, head_mask=mask).hidden.square().sum().backward()
    assert mask.grad is not None
    direction, step = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), 1e-4
    double = copy.deepcopy(model).double()
    with torch.no_grad():
        ends = [
            ask(double, head_mask=(1 + e * direction.double())).hidden.square().sum()
            for e in (step, -step)
        ]
    slope = float(ends[0] - ends[1]) / (2 * step)
    assert slope == pytest.approx(float((mask.grad * direction).sum()), rel=1e-3)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_pruning_is_a_mask_of_zeros(config: EncoderConfig):
    model = make(config)
    mask = torch.ones(3, 4)
    mask[0, 1] = mask[2, 0] = mask[2, 1] = mask[2, 3] = 0
    before = sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        expected = ask(model, head_mask=mask, keep=(2,))
        model.prune_heads({0: [1], 2: [0, 1]})
        model.prune_heads({2: [3, 1], 1: []})  # some of them are gone already
        found = ask(model, keep=(2,))
        # A mask counts the heads as they were.
        masked = ask(model, head_mask=mask)
    torch.testing.assert_close(found.hidden, expected.hidden, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(masked.hidden, expected.hidden, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(found.attentions[2], expected.attentions[2], strict=True):
        torch.testing.assert_close(ours, theirs[2:3], atol=1e-5, rtol=1e-5)
    assert model.config.pruned_heads == model.encoder.config.pruned_heads == {0: (1,), 2: (0, 1, 3)}
    size = config.head_size
    attention = model.encoder.blocks[0].attention
    inputs = sum(
        getattr(attention, name).in_features * parts for name, parts in attention.fused.items()
    )
    each = size * (inputs + 3 + config.attention_size)
    if config.position_embedding_type == "transformer_xl":  # a matrix and five vectors more
        each += size * (config.hidden_size + 5)
    assert before - sum(p.numel() for p in model.parameters()) == 4 * each
    # A model made of that config has room for just these weights.
    again = Model(model.config)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.eval()(random_batch(LENGTHS)).hidden, found.hidden)


def test_a_pruned_model_learns():
    model = make().train()
    model.prune_heads({0: [0, 1, 2], 1: [3]})
    model(random_batch(LENGTHS)).hidden.sum().backward()
    for name, parameter in model.encoder.named_parameters():
        assert parameter.requires_grad
        assert parameter.grad is not None, name
        assert parameter.grad.shape == parameter.shape


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({0: [4]}, "layer 0 has no head 4; .* 0..3"),
        ({1: [-1]}, "layer 1 has no head -1"),
        ({3: [0]}, "names layer 3; the layers are 0..2"),
        ({1: [0, 1, 3]}, "layer 1 would lose all of its heads"),
    ],
)
def test_what_cannot_be_pruned_is_refused(heads: dict, message: str):
    model = make()
    model.prune_heads({1: [2]})
    with torch.no_grad():
        before = ask(model).hidden
        with pytest.raises(InputError, match=message):
            model.prune_heads(heads)
        assert model.config.pruned_heads == {1: (2,)}
        assert torch.equal(ask(model).hidden, before)
