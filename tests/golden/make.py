"""Makes bert.npz: the weights of a tiny BERT, inputs, and what Transformers computes from them.

    python tests/golden/make.py

With it the suite compares with Transformers where that is not installed.
"""

import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).with_name("bert.npz")
CONFIG = {
    "vocab_size": 13,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 9,
}
LENGTHS = (9, 1, 4)


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shape = (len(LENGTHS), max(LENGTHS))
    mask = np.arange(shape[1]) < np.array(LENGTHS)[:, None]
    return {
        "input_ids": rng.integers(1, CONFIG["vocab_size"], shape) * mask,
        "token_type_ids": (np.arange(shape[1]) > 2) * mask,
        "attention_mask": mask.astype(np.int64),
    }


def make() -> dict[str, np.ndarray]:
    import torch
    import transformers

    config = transformers.BertConfig(**CONFIG, attn_implementation="eager")
    model = transformers.BertForPreTraining(config).eval()
    rng = np.random.default_rng(0)
    for name, parameter in model.named_parameters():
        values = rng.normal(0, 0.4, tuple(parameter.shape)) + name.endswith("LayerNorm.weight")
        parameter.data.copy_(torch.from_numpy(values))
    given = inputs()
    with torch.no_grad():
        out = model(
            **{name: torch.from_numpy(array).long() for name, array in given.items()},
            output_hidden_states=True,
        )
        last = out.hidden_states[-1]
        found = {
            "last_hidden_state": last,
            "pooler_output": model.bert.pooler(last),
            "prediction_logits": out.prediction_logits,
            "seq_relationship_logits": out.seq_relationship_logits,
        }
    settings = {"architectures": ["BertForPreTraining"], "model_type": "bert", **CONFIG}
    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
    return {
        "config": np.array(json.dumps(settings)),
        "versions": np.array(f"transformers {transformers.__version__}"),
        **given,
        **{name: tensor.numpy() for name, tensor in found.items()},
        # End to end: an array of its own for each would triple the size of the file.
        "shapes": np.array(json.dumps({name: w.shape for name, w in weights.items()})),
        "weights": np.concatenate([w.ravel() for w in weights.values()]),
    }


if __name__ == "__main__":
    np.savez_compressed(GOLDEN, **make())
    print(f"{GOLDEN.name}: {GOLDEN.stat().st_size:,} bytes")
