"""AutoModel, AutoModelFor... and AutoConfig take the classes that Transformers' take."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto

import ownbert
from ownbert import InputError
from ownbert.families import ENCODER_DECODERS, all_families
from support.tiny import made

MAPPINGS = {
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
    "AutoModelForPreTraining": modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES,
    "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForNextSentencePrediction": (
        modeling_auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES
    ),
    "AutoModelForSequenceClassification": (
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    ),
    "AutoModelForTokenClassification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForQuestionAnswering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "AutoModelForMultipleChoice": modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
    "AutoModelForImageClassification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}


@pytest.mark.parametrize("model_type", sorted({*all_families(), *ENCODER_DECODERS}))
def test_classes_are_those_of_transformers(model_type: str):
    config = ownbert.AutoConfig.for_model(model_type)
    assert type(config).__name__ == type(transformers.AutoConfig.for_model(model_type)).__name__
    for name, theirs in MAPPINGS.items():
        auto, wanted = getattr(ownbert, name), theirs.get(model_type)
        there = wanted is not None and hasattr(ownbert.hf, wanted)
        if there:
            assert auto._class(model_type).__name__ == wanted
        elif name != "AutoModelForPreTraining":  # ours falls back to AutoModelForMaskedLM's
            with pytest.raises(InputError, match=f"for {name}$"):
                auto.from_config(config)


def test_a_script_with_its_arguments(tmp_path: Path):
    made(tmp_path, "mlm")
    config = ownbert.AutoConfig.from_pretrained(
        tmp_path, num_labels=3, finetuning_task="topics", cache_dir=None, revision="main"
    )
    assert config.num_labels == 3
    options = {"cache_dir": None, "revision": "main", "token": None, "trust_remote_code": False}
    with pytest.warns(UserWarning, match="newly initialised"):
        model = ownbert.AutoModelForSequenceClassification.from_pretrained(
            tmp_path, from_tf=False, config=config, ignore_mismatched_sizes=False, **options
        )
    assert type(model) is ownbert.BertForSequenceClassification
    assert model.classifier.out_features == 3
    model.save_pretrained(tmp_path / "new")
    again = ownbert.AutoModelForSequenceClassification.from_pretrained(tmp_path / "new")
    ids = torch.tensor([[2, 5, 3]])
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    assert type(ownbert.AutoModel.from_config(config)) is ownbert.BertModel


def test_configs_of_transformers(tmp_path: Path):
    """run_mlm makes the config of a new model by Transformers' CONFIG_MAPPING."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CONFIG_MAPPING["bert"](**sizes, vocab_size=40, num_labels=3)
    model = ownbert.AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    assert type(model.config) is ownbert.BertConfig
    assert model.config.to_dict() == ownbert.BertConfig(**config.to_diff_dict()).to_dict()
    model.save_pretrained(tmp_path)
    again = ownbert.BertForSequenceClassification.from_pretrained(tmp_path, config=config)
    ids = torch.tensor([[2, 5, 3]])
    torch.testing.assert_close(again(ids).logits, model.eval()(ids).logits)
    with pytest.raises(InputError, match="takes a BertConfig, not a RobertaConfig"):
        ownbert.BertModel.from_pretrained(tmp_path, config=transformers.RobertaConfig())


@pytest.mark.parametrize("model_type", sorted({*all_families(), *ENCODER_DECODERS}))
def test_configs_of_transformers_are_equal(model_type: str):
    kind = type(ownbert.AutoConfig.for_model(model_type))
    found = kind.of(transformers.AutoConfig.for_model(model_type, num_labels=3), "X")
    values, own = found.to_dict(), kind(num_labels=3).to_dict()
    assert {key: values[key] for key in own if own[key] is not None} == {
        key: value for key, value in own.items() if value is not None
    }


def test_what_is_no_model_is_named(tmp_path: Path):
    with pytest.raises(OSError, match="nowhere"):
        ownbert.AutoModel.from_pretrained(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(InputError, match="'gpt2' is not known; use one of albert, bert"):
        ownbert.AutoModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="names no model_type"):
        ownbert.AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"AutoModel\.from_pretrained\(folder\)"):
        ownbert.AutoModel()
