"""``speed_up`` of models with adapters of PEFT."""

import copy
from pathlib import Path
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


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2), ""),
        (peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2), "past_key_values"),
        (
            peft.IA3Config(
                task_type="SEQ_CLS",
                target_modules=["key", "output.dense"],
                feedforward_modules=["output.dense"],
            ),
            "base_layer",
        ),
    ],
    ids=lambda config: type(config).__name__,
)
def test_other_methods(config: Any, why: str):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = their_model("bert", "BertForSequenceClassification", **rates)
    theirs = peft.get_peft_model(model, config)
    fast = ownbert.speed_up(copy.deepcopy(theirs))
    _same(theirs.train(), fast.train(), {**padded(theirs.config), "labels": torch.arange(3)})
    assert (_fast(fast).calls == 0) == bool(why)
    assert all(why in reason for reason in _fast(fast).reasons)


@pytest.mark.parametrize("dropout", [0.0, 0.05])
def test_trainer_saves_and_loads_several_adapters(dropout: float, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    theirs, fast = _pair("bert", "BertForSequenceClassification", lora_dropout=dropout)
    given = padded(theirs.config)
    rows = [
        {**{name: value[i] for name, value in given.items()}, "labels": i} for i in range(3)
    ] * 4
    losses, logits = [], []
    for number, model in enumerate((theirs, fast)):
        output = str(tmp_path / str(number))
        arguments = transformers.TrainingArguments(
            output,
            max_steps=6,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            logging_steps=1,
            report_to="none",
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
        model.save_pretrained(output)
        base = copy.deepcopy(model).unload()
        read = peft.PeftModel.from_pretrained(base, output).eval()
        read.load_adapter(output, "second")
        values = []
        with torch.no_grad():
            for name, parameter in read.named_parameters():
                parameter.mul_(2.0 if "lora_A.second" in name else 1.0)
            for adapter in ("default", "second"):
                read.set_adapter(adapter)
                values += [read(**given).logits for _ in range(3)]
        logits.append(torch.stack(values))
    torch.testing.assert_close(*map(torch.tensor, losses), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(*logits, atol=1e-3, rtol=1e-3)
    reasons = {"dropout of adapters in training": 6} if dropout else {}
    assert _fast(fast).reasons == reasons
    assert _fast(read).calls == 6
    assert not _fast(read).reasons
