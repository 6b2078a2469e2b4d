"""Every family and architecture: the same numbers as Transformers, in both directions."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import ownbert
from ownbert.checkpoint import load, save
from ownbert.families import FAMILIES
from ownbert.inspect.describe import describe
from ownbert.nn.model import Model
from support.parity_models import (
    ALL,
    BASES,
    MOSTLY_SLOW,
    assert_same,
    our_outputs,
    padded,
    randomize,
    read_by_them,
    their_config,
    their_model,
    their_outputs,
    there_and_back,
    transformers,
)
from support.tiny import CONFIG

BASE = dict(BASES)
UNLIKE_BERT = ("modernbert", "deberta-v2", "t5", "xlnet")
RELATIVE = [m for m in FAMILIES if m not in ("distilbert", "mobilebert", *UNLIKE_BERT)]
# Classes of encoder-decoders, which are tested in test_t5.py.
WITH_DECODER = {
    *("T5Model", "T5ForConditionalGeneration"),
    *("T5ForSequenceClassification", "T5ForQuestionAnswering"),
}
PRUNED = [(m, name) for m, name in BASES if m not in UNLIKE_BERT]


@pytest.mark.parametrize(("model_type", "architecture"), ALL)
def test_every_architecture(tmp_path: Path, model_type: str, architecture: str):
    there_and_back(their_model(model_type, architecture), tmp_path)


@pytest.mark.parametrize("count", [1, 3])
def test_a_sentence_order_head_is_as_wide_as_there_are_labels(tmp_path: Path, count: int):
    model = their_model("albert", "AlbertForPreTraining", num_labels=count)
    there_and_back(model, tmp_path)
    for folder in ("theirs", "ours"):
        model = ownbert.load(tmp_path / folder)
        with torch.no_grad():
            out = model(input_ids=torch.tensor([[5, 6, 7]]))
        assert out.sop_logits.shape == (1, count)
        model.save_pretrained(tmp_path / "again")
        assert read_by_them("AlbertForPreTraining", tmp_path / "again").config.num_labels == count
        assert load(tmp_path / "again").specs["sop"].output == count


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_architecture_of_transformers_is_here(model_type: str):
    module = sys.modules[getattr(transformers, BASE[model_type]).__module__]
    classes = {n for n in module.__all__ if n.endswith("Model") or "For" in n}
    classes = {n for n in classes if not n.endswith("PreTrainedModel")}
    assert FAMILIES[model_type].architectures.keys() == classes - WITH_DECODER


@pytest.mark.parametrize("model_type", FAMILIES)
def test_defaults_are_those_of_transformers(model_type: str):
    general = transformers.PretrainedConfig().to_dict()
    values = transformers.AutoConfig.for_model(model_type).to_dict()
    own = {k for k in values if k not in general or values[k] != general[k]}
    # All but the first follow from others.
    own -= {"model_type", "true_hidden_size", "dense_act_fn", "is_gated_act", "d_head"}
    own -= {"pooler_hidden_size"}
    defaults = FAMILIES[model_type].defaults
    assert own <= defaults.keys()
    assert {key: values[key] for key in defaults} == dict(defaults)


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize(
    "model_type",
    [m if m in ("bert", "albert") else pytest.param(m, marks=pytest.mark.slow) for m in RELATIVE],
)
def test_relative_positions(tmp_path: Path, model_type: str, kind: str):
    model = their_model(model_type, BASE[model_type], position_embedding_type=kind)
    there_and_back(model, tmp_path)
    given = padded(model.config)
    plain = their_model(model_type, BASE[model_type])
    plain.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(
        their_outputs(plain, given)["hidden"], their_outputs(model, given)["hidden"], atol=1e-3
    )


VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("albert", "AlbertForPreTraining", {"inner_group_num": 2, "num_hidden_layers": 5}),
    ("albert", "AlbertForMaskedLM", {"embedding_size": 16}),
    ("bert", "BertForPreTraining", {"layer_norm_eps": 0.1, "hidden_act": "gelu_new"}),
    ("camembert", "CamembertModel", {"pad_token_id": 3}),
    ("deberta-v2", "DebertaV2Model", {"share_att_key": True, "position_biased_input": False}),
    ("deberta-v2", "DebertaV2Model", {"pos_att_type": ["c2p"], "position_buckets": -1}),
    ("deberta-v2", "DebertaV2Model", {"pos_att_type": ["p2c"], "max_relative_positions": 3}),
    ("deberta-v2", "DebertaV2Model", {"pos_att_type": None, "conv_kernel_size": 0}),
    ("deberta-v2", "DebertaV2Model", {"relative_attention": False, "conv_act": "gelu"}),
    ("deberta-v2", "DebertaV2Model", {"norm_rel_ebd": "none", "conv_groups": 4}),
    ("deberta-v2", "DebertaV2ForMaskedLM", {"embedding_size": 8, "type_vocab_size": 0}),
    ("deberta-v2", "DebertaV2ForMaskedLM", {"legacy": False, "tie_word_embeddings": False}),
    ("deberta-v2", "DebertaV2ForMultipleChoice", {"pooler_hidden_act": "tanh"}),
    (
        "deberta-v2",
        "DebertaV2ForSequenceClassification",
        {"pooler_dropout": 0.2, "layer_norm_eps": 0.1, "hidden_act": "relu"},
    ),
    ("distilbert", "DistilBertForMaskedLM", {"sinusoidal_pos_embds": True}),
    ("distilbert", "DistilBertForSequenceClassification", {"activation": "relu"}),
    ("electra", "ElectraForMaskedLM", {"embedding_size": 16, "hidden_act": "relu"}),
    ("electra", "ElectraForPreTraining", {"hidden_act": "relu"}),
    ("electra", "ElectraForMultipleChoice", {"summary_activation": "tanh"}),
    ("electra", "ElectraForMultipleChoice", {"summary_activation": None}),
    ("ernie", "ErnieModel", {"use_task_id": False}),
    ("ernie", "ErnieModel", {"task_type_vocab_size": 5}),
    ("mobilebert", "MobileBertModel", {"trigram_input": False}),
    ("mobilebert", "MobileBertModel", {"trigram_input": False, "embedding_size": 16}),
    ("mobilebert", "MobileBertForMaskedLM", {"embedding_size": 16}),
    ("mobilebert", "MobileBertModel", {"use_bottleneck": False, "layer_norm_eps": 0.1}),
    ("mobilebert", "MobileBertModel", {"use_bottleneck_attention": True}),
    ("mobilebert", "MobileBertModel", {"key_query_shared_bottleneck": False, "bottleneck": 16}),
    ("mobilebert", "MobileBertModel", {"normalization_type": "layer_norm"}),
    ("mobilebert", "MobileBertModel", {"num_feedforward_networks": 1}),
    ("mobilebert", "MobileBertModel", {"is_decoder": True}),
    ("mobilebert", "MobileBertForSequenceClassification", {"classifier_activation": False}),
    ("modernbert", "ModernBertModel", {"local_attention": 0, "global_attn_every_n_layers": 2}),
    ("modernbert", "ModernBertModel", {"local_attention": 128, "norm_eps": 0.1}),
    ("modernbert", "ModernBertModel", {"global_attn_every_n_layers": 1, "norm_bias": True}),
    ("modernbert", "ModernBertModel", {"global_rope_theta": 50.0, "local_rope_theta": 7.0}),
    ("modernbert", "ModernBertModel", {"attention_bias": True, "mlp_bias": True}),
    ("modernbert", "ModernBertForMaskedLM", {"classifier_bias": True, "decoder_bias": False}),
    ("modernbert", "ModernBertForMaskedLM", {"hidden_activation": "relu"}),
    ("modernbert", "ModernBertForMaskedLM", {"classifier_activation": "tanh"}),
    ("modernbert", "ModernBertForMultipleChoice", {"classifier_pooling": "mean"}),
    ("modernbert", "ModernBertForTokenClassification", {"classifier_activation": "silu"}),
    ("modernbert", "ModernBertForQuestionAnswering", {"classifier_bias": True}),
    (
        "modernbert",
        "ModernBertForSequenceClassification",
        {"classifier_pooling": "mean", "norm_bias": True, "classifier_bias": True},
    ),
    ("roberta", "RobertaForMaskedLM", {"hidden_act": "relu", "pad_token_id": 0}),
    ("roberta", "RobertaModel", {"chunk_size_feed_forward": 3}),
    ("t5", "T5EncoderModel", {"feed_forward_proj": "relu", "head_width": 8}),
    ("t5", "T5EncoderModel", {"relative_buckets": 32, "relative_max_distance": 128}),
    ("t5", "T5EncoderModel", {"feed_forward_proj": "silu", "layer_norm_epsilon": 0.1}),
    ("t5", "T5ForTokenClassification", {"feed_forward_proj": "gated-silu", "relative_buckets": 7}),
    ("t5", "T5ForTokenClassification", {"tie_word_embeddings": False}),
    ("xlm-roberta", "XLMRobertaModel", {"type_vocab_size": 2}),
    ("xlnet", "XLNetModel", {"clamp_len": 3, "layer_norm_eps": 0.1, "ff_activation": "relu"}),
    ("xlnet", "XLNetModel", {"hidden_size": 24, "num_attention_heads": 3}),
    ("xlnet", "XLNetLMHeadModel", {"pad_token_id": 0, "chunk_size_feed_forward": 0}),
    ("xlnet", "XLNetForSequenceClassification", {"summary_activation": "gelu"}),
    ("xlnet", "XLNetForMultipleChoice", {"summary_activation": None}),
    (
        "xlnet",
        "XLNetForSequenceClassification",
        {"summary_use_proj": False, "summary_activation": None, "num_labels": 5},
    ),
]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("model_type", "architecture", "settings"),
    # Every other one of each family is a quick test.
    [
        pytest.param(*case, marks=pytest.mark.slow)
        if sum(other[0] == case[0] for other in VARIANTS[:number]) % 2
        else case
        for number, case in enumerate(VARIANTS)
    ],
)
def test_variants(tmp_path: Path, model_type: str, architecture: str, settings: dict[str, Any]):
    settings = dict(settings)
    if "bottleneck" in settings:
        settings["intra_bottleneck_size"] = settings.pop("bottleneck")
    there_and_back(their_model(model_type, architecture, **settings), tmp_path)


@pytest.mark.parametrize(("model_type", "architecture"), PRUNED)
def test_pruned_heads(tmp_path: Path, model_type: str, architecture: str):
    config = their_config(model_type, num_attention_heads=4)
    model = getattr(transformers, architecture)(config).eval()
    randomize(model, seed=2)
    model.prune_heads({0: [1, 2], 1: [3]})
    there_and_back(model, tmp_path)
    assert load(tmp_path / "theirs").config.pruned_heads == {0: (1, 2), 1: (3,)}


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("bert", "BertLMHeadModel"), ("camembert", "CamembertForCausalLM"), ("ernie", "ErnieModel")],
)
def test_a_decoder_with_cross_attention(tmp_path: Path, model_type: str, architecture: str):
    model = their_model(model_type, architecture, is_decoder=True, add_cross_attention=True)
    there_and_back(model, tmp_path)
    first = load_file(tmp_path / "theirs" / "model.safetensors")
    second = load_file(tmp_path / "ours" / "model.safetensors")
    assert any("crossattention.self.key" in name for name in first)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_widths_of_distilbert_in_berts_words(tmp_path: Path):
    model = their_model("distilbert", "DistilBertModel")
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    text = path.read_text().replace('"n_heads": 2', '"num_attention_heads": 4')
    path.write_text(text.replace('"dim"', '"hidden_size"'))
    again = read_by_them("DistilBertModel", tmp_path)
    assert again.config.n_heads == 4
    given = padded(model.config)
    assert_same(our_outputs(load(tmp_path), given), their_outputs(again, given))


SINUSOIDAL = ["bert", "roberta", "albert", "distilbert", "electra", "mobilebert"]


@pytest.mark.parametrize("model_type", SINUSOIDAL)
def test_they_read_our_sinusoidal_positions_as_a_table(tmp_path: Path, model_type: str):
    theirs = their_model(model_type, BASE[model_type])
    theirs.save_pretrained(tmp_path / "theirs")
    head = next(iter(FAMILIES[model_type].architectures.values()))
    config = replace(
        load(tmp_path / "theirs").config, position_embedding_type="sinusoidal", hidden_act="relu"
    )
    model = Model(config, pooler=head.pooler, model_type=model_type).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data.normal_(std=0.2)
    save(model, tmp_path / "ours")
    again = read_by_them(BASE[model_type], tmp_path / "ours")
    given = padded(again.config)
    # The row of the padding is zero in none of ours: compare where no padding is near.
    given = {name: tensor[:1] for name, tensor in given.items()}
    assert_same(our_outputs(model, given), their_outputs(again, given))


@pytest.mark.parametrize("kind", ["rotary", "alibi"])
def test_they_refuse_positions_of_our_own(tmp_path: Path, kind: str):
    save(Model(replace(CONFIG, position_embedding_type=kind)), tmp_path)
    with pytest.raises(ValueError, match="ownbert-bert"):
        transformers.AutoModel.from_pretrained(tmp_path)


def test_they_read_the_encoder_and_the_heads_they_know(tmp_path: Path):
    """A model with a head that Transformers lacks beside one that it has."""
    their_model("bert", "BertForPreTraining").save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs", heads=("mlm", "sop"))
    save(model, tmp_path / "ours")
    again, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"]
    given = padded(again.config)
    ours = our_outputs(model, given)
    assert_same({name: ours[name] for name in ("hidden", "mlm")}, their_outputs(again, given))


def test_uneven_groups_of_albert(tmp_path: Path):
    sizes = {"num_hidden_layers": 5, "num_hidden_groups": 3, "intermediate_size": 8}
    there_and_back(their_model("albert", "AlbertModel", **sizes), tmp_path)


# ``describe`` counts what Transformers counts, for every family and architecture.


@pytest.mark.parametrize(("model_type", "architecture"), MOSTLY_SLOW)
def test_as_many_parameters(model_type: str, architecture: str, tmp_path: Path):
    theirs = their_model(model_type, architecture)
    config = {**theirs.config.to_dict(), "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    overview = describe(tmp_path, tokens=5)
    assert overview.parameters == sum(p.numel() for p in theirs.parameters())
    if (model_type, architecture) in BASES:
        assert f"{overview.parameters:,}" in str(overview)
