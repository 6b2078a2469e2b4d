"""Classes that scripts derive from ours as from Transformers': each script is run by both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert.hf as hf  # noqa: E402
from ownbert.exceptions import InputError  # noqa: E402
from support.padded_models import close, padded, pair, sizes  # noqa: E402

LIBRARIES = (transformers, hf)
pytestmark = pytest.mark.filterwarnings("ignore:.*newly initiali[sz]ed")


def tagger(lib: Any) -> Any:
    class Tagger(lib.BertPreTrainedModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert = lib.BertModel(config, add_pooling_layer=False)
            self.dropout = nn.Dropout(0.1)
            self.score = nn.Linear(config.hidden_size, 3)
            self.post_init()

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                module.weight.data.fill_(0.25)
                module.bias.data.fill_(1)

        def forward(self, input_ids: Any = None, attention_mask: Any = None) -> Any:
            mask = self.get_extended_attention_mask(attention_mask, input_ids.shape)
            assert self.get_head_mask(None, 2) == [None, None]
            hidden = self.bert(input_ids, attention_mask).last_hidden_state
            return self.score(self.dropout(hidden)) + mask.squeeze(1).transpose(1, 2)

    return Tagger


def classifier(lib: Any) -> Any:
    class Classifier(lib.BertForSequenceClassification):
        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                module.weight.data.fill_(0.25)
                module.bias.data.fill_(1)

        def forward(self, input_ids: Any = None, attention_mask: Any = None) -> Any:
            pooled = self.bert(input_ids, attention_mask).pooler_output
            return self.classifier(self.dropout(pooled))

    return Classifier


@pytest.mark.parametrize("script", [tagger, classifier])
def test_own_initialisation(script: Any, tmp_path: Path):
    pair("BertModel")[0].save_pretrained(tmp_path)
    found = []
    for lib in LIBRARIES:
        made = script(lib)(lib.BertConfig(**sizes("bert")))
        layer = made.score if script is tagger else made.classifier
        assert bool((layer.weight == 0.25).all() and (layer.bias == 1).all())
        inside = made.bert.encoder.layer[0].output.dense.weight
        assert script is classifier or not bool((inside == 0.25).any())
        found.append(script(lib).from_pretrained(tmp_path).eval()(**padded()))
        assert isinstance(made, transformers.PreTrainedModel)
    close(found[1], found[0], padded()["attention_mask"].bool() if script is tagger else None)


def test_the_trainer_groups_and_saves_own_classes(tmp_path: Path):
    pytest.importorskip("accelerate")
    groups, files = [], []
    for lib in LIBRARIES:
        made = tagger(lib)(lib.BertConfig(**sizes("bert")))
        options = {"use_cpu": True, "report_to": [], "weight_decay": 0.5}
        trainer = transformers.Trainer(made, transformers.TrainingArguments(tmp_path, **options))
        decayed = set(trainer.get_decay_parameter_names(made))
        groups.append([(name, name in decayed) for name, _ in made.named_parameters()])
        trainer.save_model(tmp_path / lib.__name__)
        files.append({file.name for file in (tmp_path / lib.__name__).iterdir()})
        again = tagger(lib).from_pretrained(tmp_path / lib.__name__)
        assert torch.equal(again.score.weight, made.score.weight)
    assert groups[0] == groups[1]
    assert files[0] == files[1] >= {"config.json", "model.safetensors"}


@pytest.mark.parametrize("decoder", [False, True])
def test_masks_for_own_layers(decoder: bool):
    mask = padded()["attention_mask"]
    found = []
    for model in pair("BertModel", is_decoder=decoder):
        heads = torch.tensor([[0.0, 1, 1, 0.5], [1, 0, 1, 1]])
        found.append(
            (
                model.get_extended_attention_mask(mask, mask.shape),
                model.get_extended_attention_mask(mask[:, None] * mask[..., None], mask.shape),
                model.invert_attention_mask(mask),
                *(model.get_head_mask(each, 2) for each in (heads, heads[0])),
                model.get_head_mask(heads, 2, True),
            )
        )
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_gradients_at_embeddings_of_frozen_weights():
    for model in pair("BertForSequenceClassification"):
        model.requires_grad_(False)
        model.enable_input_require_grads()
        assert model(**padded()).logits.requires_grad
        model.disable_input_require_grads()
        assert not model(**padded()).logits.requires_grad
        assert model.get_decoder() is model


def test_the_output_layer():
    _, ours = pair("BertForMaskedLM")
    layer = nn.Linear(32, 60)
    layer.weight = ours.get_input_embeddings().weight
    ours.set_output_embeddings(layer)
    assert ours.get_output_embeddings().bias is layer.bias
    assert ours.vocab_size == 60
    with pytest.raises(InputError, match="shares its matrix with the word embeddings"):
        ours.set_output_embeddings(nn.Linear(32, 60))
    with pytest.raises(InputError, match="BertModel has no language modelling head"):
        pair("BertModel")[1].set_output_embeddings(layer)


@pytest.mark.filterwarnings("ignore")
def test_weights_of_a_state_dict(tmp_path: Path):
    theirs, ours = pair("BertForSequenceClassification", num_labels=3)
    state, given = theirs.state_dict(), padded()
    theirs.save_pretrained(tmp_path)
    for name, config in ((None, ours.config), (tmp_path, None)):
        again = type(ours).from_pretrained(name, config=config, state_dict=state)
        close(again(**given).logits, theirs(**given).logits)
    partly = {name: tensor for name, tensor in state.items() if "classifier" not in name}
    again, info = type(ours).from_pretrained(
        None, config=ours.config, state_dict=partly, output_loading_info=True
    )
    assert sorted(info["missing_keys"]) == ["classifier.bias", "classifier.weight"]
    with pytest.raises(InputError, match="needs a folder, or config and state_dict"):
        type(ours).from_pretrained(None)


def test_pruning_from_the_end():
    found = []
    for model in pair("BertModel"):
        model.prune_heads({-1: [0], 0: [1, 2]})
        found.append(model(**padded()).pooler_output)
    close(found[1], found[0])


def test_settings_that_scripts_look_at(tmp_path: Path):
    config = hf.BertConfig(**sizes("bert"), gradient_checkpointing=True, is_decoder=True)
    model = hf.BertLMHeadModel(config)
    assert model.is_gradient_checkpointing
    assert not hf.BertLMHeadModel(hf.BertConfig(**sizes("bert"))).is_gradient_checkpointing
    assert config.max_length == 20
    model.set_attn_implementation("eager")
    model.generation_config.max_length = 7
    model.save_pretrained(tmp_path)
    given = torch.tensor([[5, 6, 7]])
    for kind in (hf.BertLMHeadModel, transformers.BertLMHeadModel):
        again = kind.from_pretrained(tmp_path).eval()
        assert again.generation_config.max_length == 7
        assert again.generate(given, eos_token_id=None, pad_token_id=0).shape == (1, 7)


def test_no_weights_are_lost_on_a_device_without_memory(tmp_path: Path):
    pair("BertModel")[0].save_pretrained(tmp_path)
    with torch.device("meta"), pytest.raises(InputError, match="device meta does not hold"):
        hf.BertModel.from_pretrained(tmp_path)


def test_traces_name_the_export():
    _, ours = pair("BertModel")
    given = padded()
    with pytest.raises(InputError, match="ownbert export writes graphs for texts of any length"):
        torch.jit.trace(ours, (given["input_ids"],), strict=False)
    layer = ours.get_submodule("encoder.layer.1.output.dense")
    assert layer is ours.encoder.layer[1].output.dense
