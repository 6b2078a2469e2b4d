"""Makes the golden files: weights of tiny models, inputs, and what Transformers computes from them.

    python tests/golden/make.py

bert.npz is of BERT, families.npz of its relatives. With them the suite compares with Transformers
where that is not installed.
"""

import json
from pathlib import Path
from typing import Any

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

FAMILIES = Path(__file__).with_name("families.npz")
# An architecture of each relative, and what it is made with besides ``CONFIG``.
RELATIVES: dict[str, dict[str, Any]] = {
    "RobertaForMaskedLM": {"max_position_embeddings": 11},
    "XLMRobertaForSequenceClassification": {"max_position_embeddings": 11, "type_vocab_size": 1},
    "CamembertForQuestionAnswering": {"max_position_embeddings": 11},
    "AlbertForPreTraining": {"embedding_size": 4, "position_embedding_type": "relative_key"},
    "DistilBertForMultipleChoice": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12},
    "ElectraForPreTraining": {"embedding_size": 4},
    "ErnieForTokenClassification": {"use_task_id": True},
    "ModernBertForSequenceClassification": {
        "num_hidden_layers": 3,
        "local_attention": 4,
        "classifier_pooling": "mean",
        "pad_token_id": 0,
    },
    "MobileBertForPreTraining": {
        "embedding_size": 4,
        "intra_bottleneck_size": 4,
        "num_feedforward_networks": 2,
    },
}
# Logits by their names in the outputs of Transformers.
LOGITS = (
    "logits",
    "prediction_logits",
    "seq_relationship_logits",
    "sop_logits",
    "start_logits",
    "end_logits",
)


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


def make_families() -> dict[str, np.ndarray]:
    import transformers

    found = {"versions": np.array(f"transformers {transformers.__version__}")}
    for architecture, settings in RELATIVES.items():
        made = make_relative(getattr(transformers, architecture), settings)
        found |= {f"{architecture}/{name}": array for name, array in made.items()}
    return found


def make_relative(kind: Any, settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Weights are whole 64ths, which a byte holds."""
    import torch

    config = kind.config_class(**{**CONFIG, **settings}, attn_implementation="eager")
    model, rng = kind(config).eval(), np.random.default_rng(0)
    weights = {}
    for name, parameter in model.named_parameters():
        norm = parameter.ndim == 1 and name.endswith("weight")
        weights[name] = rng.integers(-24, 25, tuple(parameter.shape)) + 64 * norm
        if name.endswith("word_embeddings.weight"):
            weights[name][config.pad_token_id] = 0
        parameter.data.copy_(torch.from_numpy(weights[name] / 64))
    given = relative_inputs(config)
    batch = {name: torch.from_numpy(array).long() for name, array in given.items()}
    with torch.no_grad():
        # Not the last of `hidden_states`, which is before the final norm in some families.
        last = model.base_model(**batch).last_hidden_state
        if "MultipleChoice" in kind.__name__:
            batch = {name: tensor[:, None] for name, tensor in batch.items()}
        out = model(**batch)
    said = {**json.loads(config.to_json_string()), "architectures": [kind.__name__]}
    return {
        "config": np.array(json.dumps(said)),
        **given,
        "last_hidden_state": last.numpy(),
        **{name: out[name].numpy() for name in LOGITS if name in out},
        "shapes": np.array(json.dumps({name: w.shape for name, w in weights.items()})),
        "weights": np.concatenate([w.ravel() for w in weights.values()]).astype(np.int8),
    }


def relative_inputs(config: Any) -> dict[str, np.ndarray]:
    given = inputs()
    mask = given["attention_mask"]
    # No token of a text is the padding's: RoBERTa counts positions by it.
    given["input_ids"] = (given["input_ids"] % 11 + 2) * mask + config.pad_token_id * (1 - mask)
    types = getattr(config, "type_vocab_size", 0)
    given["token_type_ids"] = given["token_type_ids"].astype(np.int64) % max(types, 1)
    if not types:
        del given["token_type_ids"]
    if getattr(config, "use_task_id", False):
        given["task_type_ids"] = np.cumsum(mask, 1) % 3
    return given


if __name__ == "__main__":
    for path, arrays in ((GOLDEN, make()), (FAMILIES, make_families())):
        np.savez_compressed(path, **arrays)
        print(f"{path.name}: {path.stat().st_size:,} bytes")
