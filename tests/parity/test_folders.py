"""Folders as Transformers has written them over the years."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForPreTraining

import ownbert
from ownbert import InputError
from ownbert.batches.batch import from_padded
from ownbert.checkpoint import load
from ownbert.exporting.quantize import quantize
from ownbert.inference.fill_mask import Filler
from support.parity_models import (
    assert_same,
    our_outputs,
    padded,
    their_model,
    their_outputs,
    transformers,
)
from support.tiny import made

KINDS = [
    ("bert", "BertForPreTraining"),
    ("albert", "AlbertForPreTraining"),
    ("distilbert", "DistilBertForMaskedLM"),
    ("electra", "ElectraForMaskedLM"),
    ("mobilebert", "MobileBertForPreTraining"),
    ("roberta", "RobertaForMaskedLM"),
]


def assert_reads(folder: Path, model: Any) -> None:
    given = padded(model.config)
    assert_same(our_outputs(load(folder), given), their_outputs(model, given))


@pytest.mark.parametrize(("model_type", "architecture"), KINDS)
def test_sharded_safetensors(tmp_path: Path, model_type: str, architecture: str):
    model = their_model(model_type, architecture)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_reads(tmp_path, model)


@pytest.mark.parametrize(("model_type", "architecture"), KINDS)
@pytest.mark.parametrize("size", ["8KB", "8MB"])
def test_pickled_weights(tmp_path: Path, model_type: str, architecture: str, size: str):
    """They hold the tied decoder too."""
    model = their_model(model_type, architecture)
    model.save_pretrained(tmp_path, safe_serialization=False, max_shard_size=size)
    assert len(list(tmp_path.glob("*.bin"))) > (size == "8KB")
    assert not list(tmp_path.glob("*.safetensors"))
    assert_reads(tmp_path, model)


@pytest.mark.parametrize(("model_type", "architecture"), KINDS)
def test_names_and_buffers_of_long_ago(tmp_path: Path, model_type: str, architecture: str):
    model = their_model(model_type, architecture)
    model.save_pretrained(tmp_path)
    path, prefix = tmp_path / "model.safetensors", model.base_model_prefix
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(path).items()
    }
    assert any(name.endswith("LayerNorm.gamma") for name in old)
    old[f"{prefix}.embeddings.position_ids"] = torch.arange(14)[None]
    save_file(old, path)
    assert_reads(tmp_path, model)


@pytest.mark.parametrize(("model_type", "architecture"), KINDS)
def test_with_the_prefix_and_without(tmp_path: Path, model_type: str, architecture: str):
    """A base model is written without, but a part of a larger one is often saved with it."""
    model = their_model(model_type, architecture)
    model.save_pretrained(tmp_path)
    path, prefix = tmp_path / "model.safetensors", model.base_model_prefix + "."
    bare = {name.removeprefix(prefix): t for name, t in load_file(path).items()}
    assert bare.keys() != load_file(path).keys()
    save_file(bare, path)
    assert_reads(tmp_path, model)


@pytest.mark.parametrize(
    ("model_type", "architecture", "decoder"),
    [
        ("bert", "BertForPreTraining", "cls.predictions.decoder.weight"),
        ("albert", "AlbertForPreTraining", "predictions.decoder.weight"),
        ("distilbert", "DistilBertForMaskedLM", "vocab_projector.weight"),
        ("electra", "ElectraForMaskedLM", "generator_lm_head.weight"),
        ("mobilebert", "MobileBertForMaskedLM", "cls.predictions.decoder.weight"),
        ("roberta", "RobertaForMaskedLM", "lm_head.decoder.weight"),
    ],
)
def test_a_decoder_that_is_not_tied(
    tmp_path: Path, model_type: str, architecture: str, decoder: str
):
    model = their_model(model_type, architecture)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    words = model.get_input_embeddings().weight.detach()
    save_file({**weights, decoder: words.clone()}, path)
    assert_reads(tmp_path, model)
    save_file({**weights, decoder: words + 1}, path)
    with pytest.raises(InputError, match=f"tensor {decoder} differs from .*; it must be tied"):
        load(tmp_path)


def test_a_base_model_without_pooler(tmp_path: Path):
    config = their_model("bert", "BertModel").config
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    given = padded(config)
    with torch.no_grad():
        theirs = model(**given).last_hidden_state[given["attention_mask"].bool()]
    assert_same(our_outputs(load(tmp_path, pooler=False), given), {"hidden": theirs})


def test_a_quantized_folder_is_refused(tmp_path: Path):
    """Weights that Transformers does not find would otherwise start from random ones."""
    made(tmp_path / "float")
    quantize(tmp_path / "float", tmp_path / "int8")
    for name in ("BertModel", "AutoModel"):
        with pytest.raises(OSError, match=r"model\.safetensors"):
            getattr(transformers, name).from_pretrained(tmp_path / "int8")


# BERT under other names, with the config.json that these were published with: by rules alone.


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
}
# Keys of Google's Chinese BERT, in the configs of those that go on from it.
CHINESE = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}
NAMED: dict[str, Any] = {"model_type": "bert"}
CONFIGS: dict[str, dict[str, Any]] = {
    "SciBERT, BioBERT": {},
    "SpanBERT": {**CHINESE, "output_past": True},
    "TinyBERT": {"cell": {}, "emb_size": 16, "pre_trained": "", "structure": []},
    "MiniLM": {**NAMED, "architectures": ["BertModel"], "layer_norm_eps": 1e-12},
    "BERT-wwm": {**NAMED, **CHINESE, "architectures": ["BertForMaskedLM"], "output_past": True},
    "MacBERT": {**NAMED, **CHINESE, "architectures": ["BertForMaskedLM"], "use_cache": True},
    "StructBERT": {**NAMED, "layer_norm_eps": 1e-12, "pad_token_id": 0},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_with_the_config_of(name: str, tmp_path: Path):
    torch.manual_seed(0)
    theirs = BertForPreTraining(BertConfig(**SIZES)).eval()
    tensors = {key: tensor.contiguous() for key, tensor in theirs.state_dict().items()}
    if name == "TinyBERT":
        tensors |= {"fit_dense.weight": torch.ones(16, 16), "fit_dense.bias": torch.ones(16)}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **CONFIGS[name]}))

    ids = torch.tensor([[2, 5, 4, 3]])
    with torch.inference_mode():
        encoder = ownbert.load(tmp_path, heads=[], pooler=False)
        found = encoder(from_padded(ids)[0], []).hidden
        expected = theirs.bert(ids).last_hidden_state[0]
        logits = theirs(ids).prediction_logits[0, 2]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    if name == "MiniLM":
        with pytest.raises(InputError, match="has no masked-language-model head"):
            Filler(tmp_path)
        return
    (filled,) = Filler(tmp_path, top=3)(["a [MASK]"])
    best = [each.probability for each in filled.masks[0].candidates]
    torch.testing.assert_close(torch.tensor(best), logits.softmax(-1).topk(3).values)


def test_a_folder_without_that_head_and_without_a_name_of_one(tmp_path: Path):
    theirs = BertForPreTraining(BertConfig(**SIZES))
    torch.save(theirs.bert.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    with pytest.raises(InputError, match=r"missing tensor cls\.predictions"):
        Filler(tmp_path)
