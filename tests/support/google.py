"""A tiny checkpoint as google-research/bert writes it, random."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support.tensor_bundle import write_bundle

CONFIG: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 6,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "directionality": "bidi",
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def shapes(heads: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a pretrained model's variables."""
    d, i, v = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    found: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (v, d),
        "bert/embeddings/position_embeddings": (CONFIG["max_position_embeddings"], d),
        "bert/embeddings/token_type_embeddings": (CONFIG["type_vocab_size"], d),
        "bert/pooler/dense/kernel": (d, d),
        "bert/pooler/dense/bias": (d,),
    }
    norms = ["bert/embeddings"]
    for number in range(CONFIG["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{number}/"
        denses = {f"attention/self/{name}": (d, d) for name in ("query", "key", "value")}
        denses |= {"attention/output/dense": (d, d), "intermediate/dense": (d, i)}
        denses |= {"output/dense": (i, d)}
        for name, shape in denses.items():
            found |= {f"{layer}{name}/kernel": shape, f"{layer}{name}/bias": shape[1:]}
        norms += [layer + "attention/output", layer + "output"]
    if heads:
        found |= {
            "cls/predictions/transform/dense/kernel": (d, d),
            "cls/predictions/transform/dense/bias": (d,),
            "cls/predictions/output_bias": (v,),
            "cls/seq_relationship/output_weights": (2, d),
            "cls/seq_relationship/output_bias": (2,),
        }
        norms.append("cls/predictions/transform")
    for name in norms:
        found |= {f"{name}/LayerNorm/gamma": (d,), f"{name}/LayerNorm/beta": (d,)}
    return found


def write_google(
    folder: Path,
    *,
    heads: bool = True,
    tokens: Sequence[str] = (),
    further: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, np.ndarray]:
    """bert_model.ckpt, bert_config.json and vocab.txt, with what an optimiser keeps of a few."""
    rng = np.random.default_rng(0)
    every = {**shapes(heads), **(further or {})}
    arrays = {name: rng.normal(0, 0.3, shape).astype("f4") for name, shape in every.items()}
    kept = {
        f"{name}/{slot}": np.zeros_like(arrays[name])
        for name in ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
        for slot in ("adam_m", "adam_v")
    }
    folder.mkdir()
    step = {"global_step": np.array(3, dtype=np.int64)}
    write_bundle(folder / "bert_model.ckpt", {**arrays, **kept, **step})
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    words = [*tokens, *"abcdef"][: CONFIG["vocab_size"] - len(SPECIAL)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n")
    return arrays
