"""``speed_up`` of models with LoRA adapters of PEFT."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import ownbert
from ownbert.transformers.encoder_call import FastEncoder
from ownbert.transformers.speed_up import _encoders
from support.parity_models import padded, their_model

peft = pytest.importorskip("peft")

CLOSE = {"atol": 2e-5, "rtol": 2e-4}


def _pair(model_type: str, architecture: str, **options: Any) -> tuple[Any, Any]:
    """A model with adapters whose matrices are random, and a copy that is sped up."""
    settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = their_model(model_type, architecture, **settings)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", target_modules=["query", "value", "dense"], r=4, **options
    )
    theirs = peft.get_peft_model(model, config)
    torch.manual_seed(0)
    for name, parameter in theirs.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.3)
    return theirs, ownbert.speed_up(copy.deepcopy(theirs))


def _fast(model: Any) -> FastEncoder:
    return next(_encoders[module] for module in model.modules() if module in _encoders)


def _same(theirs: Any, fast: Any, given: dict[str, Tensor]) -> None:
    for model in (theirs, fast):
        model.zero_grad()
        model(**given).loss.backward()
    parameters = dict(fast.named_parameters())
    assert any(p.grad is not None for p in parameters.values())
    for name, parameter in theirs.named_parameters():
        assert (parameter.grad is None) == (parameters[name].grad is None)
        if parameter.grad is not None:
            torch.testing.assert_close(parameters[name].grad, parameter.grad, **CLOSE)
    with torch.no_grad():
        for _ in range(3):
            logits = fast(**given).logits
        torch.testing.assert_close(logits, theirs(**given).logits, **CLOSE)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_adapters_are_merged_for_each_call(model_type: str):
    name = {"bert": "Bert", "roberta": "Roberta"}[model_type] + "ForSequenceClassification"
    theirs, fast = _pair(model_type, name)
    given = {**padded(theirs.config), "labels": torch.tensor([0, 1, 2])}
    for training in (False, True):
        theirs.train(training), fast.train(training)
        _same(theirs, fast, given)
    theirs.eval(), fast.eval()
    with torch.no_grad():
        for model in (theirs, fast):
            for parameter in model.parameters():
                parameter.mul_(0.9)
    _same(theirs, fast, given)
    with torch.no_grad(), theirs.disable_adapter(), fast.disable_adapter():
        torch.testing.assert_close(fast(**given).logits, theirs(**given).logits, **CLOSE)
    for model in (theirs, fast):
        model.merge_adapter()
    _same(theirs, fast, given)
    for model in (theirs, fast):
        model.unmerge_adapter()
    _same(theirs, fast, given)
    assert _fast(fast).calls == 21
    assert not _fast(fast).reasons
    merged, expected = fast.merge_and_unload(), theirs.merge_and_unload()
    torch.testing.assert_close(merged(**given).logits, expected(**given).logits, **CLOSE)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lora_dropout": 0.1}, "dropout of adapters"),
        ({"use_dora": True}, "not plain LoRA"),
        ({"lora_bias": True}, "not plain LoRA"),
    ],
)
def test_other_adapters_are_left_to_transformers(options: dict[str, Any], why: str):
    theirs, fast = _pair("bert", "BertForSequenceClassification", **options)
    given = {**padded(theirs.config), "labels": torch.tensor([0, 1, 2])}
    results = []
    for model in (theirs.train(), fast.train()):
        torch.manual_seed(0)
        results.append(model(**given).loss)
    assert torch.equal(*results)
    (reason,) = _fast(fast).reasons
    assert why in reason
