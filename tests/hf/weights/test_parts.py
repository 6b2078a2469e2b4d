"""Parts of a model by Transformers' names: looked at, frozen, exchanged, copied."""

from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert.hf as hf  # noqa: E402
from support.padded_models import close, padded, pair, same  # noqa: E402


def test_parts_by_their_names():
    theirs, ours = pair("BertForSequenceClassification")
    with torch.no_grad():
        close(ours.bert(**padded()).pooler_output, theirs.bert(**padded()).pooler_output)
    assert ours.base_model is ours.bert
    assert ours.bert.embeddings.word_embeddings is ours.get_input_embeddings()
    assert len(ours.bert.encoder.layer) == 2
    close(
        ours.bert.encoder.layer[1].attention.self.key.weight,
        theirs.bert.encoder.layer[1].attention.self.key.weight,
    )
    close(ours.bert.pooler.dense.bias, theirs.bert.pooler.dense.bias)
    close(ours.classifier.weight, theirs.classifier.weight)
    hidden = torch.rand(2, 32)
    close(ours.classifier(hidden), theirs.classifier(hidden))
    with torch.no_grad():
        for model in (ours, theirs):
            model.bert.encoder.layer[0].attention.self.value.weight.zero_()
            model.bert.encoder.layer[0].output.dense.weight.mul_(2)
    same(theirs, ours)
    with pytest.raises(AttributeError, match="has no 'decoder'"):
        _ = ours.decoder
    assert hasattr(ours, "bert")
    assert not hasattr(ours, "lm_head")


def test_freezing_and_decay_groups_by_name():
    theirs, ours = pair("BertForSequenceClassification")
    for model in (theirs, ours):
        for parameter in model.bert.embeddings.parameters():
            parameter.requires_grad = False
        for layer in model.bert.encoder.layer[:1]:
            for parameter in layer.parameters():
                parameter.requires_grad = False
    counts = [model.num_parameters(only_trainable=True) for model in (theirs, ours)]
    assert counts[0] == counts[1]
    assert theirs.num_parameters() == ours.num_parameters()
    assert sum(p.numel() for p in ours.parameters()) == ours.num_parameters()
    plain = ("bias", "LayerNorm.weight")
    sizes = [
        sum(p.numel() for n, p in model.named_parameters() if any(end in n for end in plain))
        for model in (theirs, ours)
    ]
    assert sizes[0] == sizes[1]


class Tagger(nn.Module):
    """How people build on a model."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert, self.score = bert, nn.Linear(32, 3)

    def forward(self, **given: torch.Tensor) -> torch.Tensor:
        return self.score(self.bert(**given).last_hidden_state)


def test_inside_of_another_module():
    theirs, ours = pair("BertModel")
    one, other = Tagger(theirs), Tagger(ours)
    assert other.state_dict().keys() == one.state_dict().keys()
    fresh = Tagger(hf.BertModel(ours.config))
    fresh.load_state_dict(one.state_dict())
    one.load_state_dict(fresh.state_dict())
    same(lambda **given: [one(**given)], lambda_of(fresh.eval(), ours))
    state = one.state_dict()
    del state["bert.pooler.dense.bias"]
    with pytest.raises(RuntimeError, match="pooler"):
        fresh.load_state_dict(state)
    state["bert.extra"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bert\.extra"):
        fresh.load_state_dict(state)


def lambda_of(module: nn.Module, ours: Any) -> Any:
    """Stands for a model in ``same``."""

    class Called:
        config = ours.config

        def __call__(self, **given: torch.Tensor) -> list[torch.Tensor]:
            return [module(**given)]

    return Called()


def test_layers_are_exchanged_by_name():
    theirs, ours = pair("BertForSequenceClassification")
    layer, words = nn.Linear(32, 7), nn.Embedding(60, 32)
    for model in (theirs, ours):
        model.classifier = layer
        model.bert.encoder.layer[1].output.dense = nn.Linear(48, 32)
        model.bert.embeddings.word_embeddings = words
    dense = theirs.bert.encoder.layer[1].output.dense
    ours.bert.encoder.layer[1].output.dense = dense
    assert ours.classifier is layer
    assert ours.get_input_embeddings() is words
    with torch.no_grad():
        close(ours(**padded()).logits, theirs(**padded()).logits)
    base = ours.bert
    base.pooler = None
    assert base(**padded()).pooler_output is None


def test_copies(tmp_path):
    import copy

    _, ours = pair("BertForMaskedLM")
    given = padded()
    for twin in (copy.deepcopy(ours), reloaded(ours, tmp_path / "whole.pt")):
        close(twin(**given).logits, ours(**given).logits)
        assert twin.get_output_embeddings().weight is twin.get_input_embeddings().weight
        assert twin.get_input_embeddings().weight is not ours.get_input_embeddings().weight
        assert twin.config == ours.config
    out = reloaded(ours(**given), tmp_path / "out.pt")
    close(out.logits, ours(**given).logits)


def reloaded(value: Any, path: Any) -> Any:
    """What our own process wrote a moment ago, pickled."""
    torch.save(value, path)
    return torch.load(path, weights_only=False)
