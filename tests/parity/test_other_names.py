"""BERT under other names, with the config.json that these were published with: by rules alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForPreTraining

import ownbert
from ownbert import InputError
from ownbert.batches.batch import from_padded
from ownbert.inference.fill_mask import Filler

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
