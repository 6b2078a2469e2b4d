"""Configurations drawn at random: the same numbers as Transformers, in both directions."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from ownbert.checkpoint import load, save
from ownbert.families import FAMILIES
from support.floats import assert_close
from support.parity_models import our_outputs, padded, read_by_them, their_model, their_outputs

CHOICES: dict[str, dict[str, list[Any]]] = {
    "deberta-v2": {
        "relative_attention": [True, True, True, False],
        "pos_att_type": [["p2c", "c2p"], ["c2p"], ["p2c"], "c2p|p2c", None],
        "share_att_key": [True, False],
        "position_biased_input": [True, False],
        "norm_rel_ebd": ["none", "layer_norm"],
        "conv_kernel_size": [0, 1, 3, 5],
        "max_relative_positions": [-1, 3, 20],
        "position_buckets": [-1, 2, 5, 256],
        "type_vocab_size": [0, 1, 2],
        "pooler_hidden_act": ["gelu", "tanh"],
    },
    "modernbert": {
        "global_attn_every_n_layers": [1, 2, 3, 7],
        "local_attention": [0, 1, 2, 5, 128],
        "classifier_pooling": ["cls", "mean"],
        "deterministic_flash_attn": [True, False],
        "attention_bias": [True, False],
        "mlp_bias": [True, False],
        "norm_bias": [True, False],
        "classifier_bias": [True, False],
        "decoder_bias": [True, False],
        "local_rope_theta": [None, 10.0],
        "pad_token_id": [0],
    },
    "t5": {
        "head_width": [3, 8, 11],
        "feed_forward_proj": ["relu", "gated-gelu", "gated-silu", "gelu"],
        "relative_buckets": [4, 7, 9, 32],
        "relative_max_distance": [20, 128],
        "num_decoder_layers": [1, 4],
        "tie_word_embeddings": [True, False],
    },
    "xlnet": {
        "clamp_len": [-1, 1, 3, 20],
        "same_length": [True, False],  # which counts in no class that reads both ways
        "summary_activation": ["tanh", None, "gelu"],
        "untie_r": [True, False],
        "mem_len": [None, 0, 4],
        "ff_activation": ["gelu", "relu"],
    },
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model_type", CHOICES)
def test_random_configurations(tmp_path: Path, model_type: str, seed: int):
    draw = random.Random(f"{model_type} {seed}")
    heads, half = draw.choice([1, 2, 3, 5]), draw.choice([1, 2, 4])
    settings: dict[str, Any] = {
        "hidden_size": 2 * half * heads,
        "num_attention_heads": heads,
        "num_hidden_layers": draw.choice([1, 2, 3, 5]),
        "intermediate_size": draw.choice([7, 24, 33]),
    }
    settings |= {name: draw.choice(values) for name, values in CHOICES[model_type].items()}
    architecture = draw.choice([*FAMILIES[model_type].architectures])
    model = their_model(model_type, architecture, **settings)
    given = padded(model.config, architecture)
    theirs = their_outputs(model, given)
    model.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    save(ours, tmp_path / "ours")
    again = read_by_them(architecture, tmp_path / "ours")
    with torch.no_grad():
        found = our_outputs(ours, given), their_outputs(again, given)
    for outputs in found:
        assert outputs.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert_close(outputs[name], tensor, name=f"{architecture} {name} {settings}")
