"""Parameters by Transformers' names: queries, keys and values, one matrix, train as three."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import nn

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

from support.padded_models import padded, pair, same  # noqa: E402

SHARED = ("BertForMaskedLM", "AlbertForMaskedLM", "ElectraForMaskedLM", "DistilBertForMaskedLM")
LABELS = torch.tensor([0, 1, 1])


def loss(model: Any) -> torch.Tensor:
    return model(**padded(), labels=LABELS).loss


def freeze_queries(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "attention.self.query" in name:
            parameter.requires_grad = False
    _train(model, [p for p in model.parameters() if p.requires_grad])


def train_values_alone(model: Any) -> None:
    model.requires_grad_(False)
    values = [p for n, p in model.named_parameters() if "attention.self.value" in n]
    for parameter in values:
        parameter.requires_grad_(True)
    _train(model, values)


def frozen_before_it_is_looked_at(model: Any) -> None:
    """As by tools that freeze the modules inside."""
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                parameter.requires_grad_(False)
    train_values_alone(model)


def penalty_of_keys(model: Any) -> None:
    keys = [p for n, p in model.named_parameters() if "self.key" in n]
    _train(model, list(model.parameters()), lambda: sum((p**2).sum() for p in keys))


def two_optimizers(model: Any) -> None:
    """Each clears its own gradients alone, so the other's go on adding up."""
    named = list(model.named_parameters())
    first = torch.optim.SGD([p for n, p in named if "self.query" in n], lr=0.1)
    second = torch.optim.SGD([p for n, p in named if "self.query" not in n], lr=0.1, momentum=0.9)
    for step in range(4):
        loss(model).backward()
        first.step()
        first.zero_grad()
        if step % 2:
            second.step()
            second.zero_grad()


def another_type_after_the_optimizer(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.double()
    for _ in range(2):
        loss(model).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def values_set_by_hand(model: Any) -> None:
    vector = torch.nn.utils.parameters_to_vector(model.parameters())
    torch.nn.utils.vector_to_parameters(vector * 1.5, model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _train(model: Any, parameters: list[Any], more: Callable[[], Any] = lambda: 0) -> None:
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        (loss(model) + more()).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "script",
    [
        freeze_queries,
        train_values_alone,
        frozen_before_it_is_looked_at,
        penalty_of_keys,
        two_optimizers,
        another_type_after_the_optimizer,
        values_set_by_hand,
    ],
)
def test_three_train_as_one(script: Callable[[Any], None]):
    states = []
    for model in pair("BertForSequenceClassification"):
        script(model.eval())
        states.append(model.state_dict())
    for name, expected in states[0].items():
        found = states[1].get(name, expected)  # a buffer of theirs
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("architecture", [*SHARED, "XLNetForSequenceClassification"])
def test_saving_by_safetensors(architecture: str, tmp_path: Path):
    theirs, ours = pair(architecture)
    assert {n: p.shape for n, p in ours.named_parameters()} == {
        n: p.shape for n, p in theirs.named_parameters()
    }
    save_model(ours, str(tmp_path / "all"))
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    again = copy.deepcopy(ours)
    assert not any(bool(tensor.any()) for tensor in again.state_dict().values())
    load_model(again, str(tmp_path / "all"))
    again = pickle.loads(pickle.dumps(again))
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())


def test_functional_call_by_the_names_inside():
    """``torch.func.functional_call`` sets weights of modules, which have names of their own."""
    _, ours = pair("BertForSequenceClassification")
    halved = {f"model.{name}": p.detach() / 2 for name, p in ours.model.named_parameters()}
    weights = {name: tensor.requires_grad_() for name, tensor in halved.items()}
    given = {**padded(), "labels": LABELS}
    found = torch.func.functional_call(ours, weights, (), given)
    grads = torch.autograd.grad(found.loss, [*weights.values()])
    with torch.no_grad():
        for parameter in ours.model.parameters():
            parameter /= 2
    expected = ours(**given)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(
        grads, torch.autograd.grad(expected.loss, [*ours.model.parameters()])
    )


def test_the_last_parameters_are_those_of_the_head():
    """Scripts freeze all parameters but the last ones: ``list(model.parameters())[:-2]``."""
    for name in ("BertForSequenceClassification", "BertForPreTraining", "RobertaForMultipleChoice"):
        last = [[n for n, _ in model.named_parameters()][-2:] for model in pair(name)]
        assert last[0] == last[1]


def test_layers_in_place_of_a_layer_have_its_name(tmp_path):
    """Scripts find a new head by the name of the old one, to train it alone."""

    def with_head(model: Any) -> Any:
        model.classifier = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 3))
        dense = model.bert.encoder.layer[1].output.dense
        model.bert.encoder.layer[1].output.dense = nn.Sequential(dense, nn.Linear(32, 32))
        return model

    theirs, ours = map(with_head, pair("BertForSequenceClassification", num_labels=3))
    names = [name for name, _ in theirs.named_parameters()]
    assert [name for name, _ in ours.named_parameters()] == names
    assert names[-1] == "classifier.1.bias"
    assert set(ours.state_dict()) == set(theirs.state_dict())
    modules = {name for name, module in theirs.named_modules() if "classifier" in name}
    assert modules <= {name for name, _ in ours.named_modules()}
    layers = (model.bert.encoder.layer[1] for model in (theirs, ours))
    assert len({sum(p.numel() for p in layer.parameters()) for layer in layers}) == 1
    assert not any(ours.load_state_dict(theirs.state_dict()))
    same(theirs, ours)
    ours.classifier[0].running_mean += 1
    ours.save_pretrained(tmp_path)
    theirs.load_state_dict(load_file(tmp_path / "model.safetensors"))
    same(theirs, ours)
    missing, unexpected = ours.load_state_dict({"classifier.2.bias": torch.ones(3)}, strict=False)
    assert "classifier.1.bias" in missing
    assert unexpected == ["classifier.2.bias"]
