"""Tiny random models of Transformers, of every family and architecture, and what they compute."""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ownbert.batches.batch import Batch, from_padded
from ownbert.checkpoint import load, save
from ownbert.families import FAMILIES
from support.floats import assert_close

transformers = pytest.importorskip("transformers")

VOCAB, LENGTHS = 37, (9, 1, 4)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 14,
}
# What a family is made with besides, so that nothing of it is left out.
FURTHER: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8, "num_hidden_layers": 4, "num_hidden_groups": 2},
    # Groups of distances from the third on, shared by texts of nine tokens.
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 4,
        "norm_rel_ebd": "layer_norm",
        "type_vocab_size": 2,
        "conv_kernel_size": 3,
    },
    "electra": {"embedding_size": 8},
    "ernie": {"use_task_id": True},
    "mobilebert": {
        "embedding_size": 8,
        "intra_bottleneck_size": 8,
        "num_feedforward_networks": 3,
    },
    # With global layers 0 and 3, and texts that are longer than the others see.
    "modernbert": {"num_hidden_layers": 4, "local_attention": 5, "pad_token_id": 0},
    # With distances beyond those that have a bucket each, and heads that are wider than D / H.
    "t5": {
        "head_width": 11,
        "relative_buckets": 10,
        "relative_max_distance": 7,
        "feed_forward_proj": "gated-gelu",
    },
    "xlm-roberta": {"type_vocab_size": 1},
}
# The sines are a table like any other once they are in a checkpoint.
ALIKE = {"sinusoidal_pos_embds": False}
ALL = [(family.model_type, name) for family in FAMILIES.values() for name in family.architectures]
# One of each family, and all of BERT's.
REPRESENTATIVES = {next(c for c in ALL if c[0] == model_type) for model_type in FAMILIES}
REPRESENTATIVES |= {case for case in ALL if case[0] == "bert"}
# For what depends on the family alone, or is tested of every architecture elsewhere too.
MOSTLY_SLOW = [
    case if case in REPRESENTATIVES else pytest.param(*case, marks=pytest.mark.slow) for case in ALL
]
BASES = [(family.model_type, next(iter(family.architectures))) for family in FAMILIES.values()]


def their_config(model_type: str, **settings: Any) -> Any:
    family = FAMILIES[model_type]
    given = {**SIZES, **FURTHER.get(model_type, {}), **settings}
    if model_type == "xlnet":
        del given["max_position_embeddings"]  # which it has not
    given = {family.names.get(name, name): value for name, value in given.items()}
    return transformers.AutoConfig.for_model(model_type, **given, attn_implementation="eager")


def their_model(model_type: str, architecture: str, **settings: Any) -> Any:
    """Every weight and bias random, LayerNorms too; of the padding's word alone all is zero."""
    head = FAMILIES[model_type].architectures[architecture]
    if head.decoder:
        settings = {"is_decoder": True, **settings}
    if any(spec.kind in ("classification", "tokens") for spec in head.heads):
        settings = {"num_labels": 3, **settings}
    config = their_config(model_type, **settings)
    model = getattr(transformers, architecture)(config).eval()
    randomize(model, seed=zlib.crc32(architecture.encode()))
    return model


def randomize(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Without LayerNorm numbers grow from layer to layer, and their errors with them.
    size = 0.15 if hasattr(model.config, "normalization_type") else 0.3
    for name, parameter in model.named_parameters():
        norm = parameter.ndim == 1 and name.endswith("weight")
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * size + norm)
    # MobileBERT lets the last token of a text see the word of the padding behind it.
    model.get_input_embeddings().weight.data[model.config.pad_token_id] = 0


def padded(config: Any, architecture: str = "") -> dict[str, Tensor]:
    """Rows of mixed lengths, padded on the right (of XLNet on the left, as its last token is the
    one that counts), with all kinds of token types there are."""
    generator = torch.Generator().manual_seed(1)
    shape = len(LENGTHS), max(LENGTHS)
    mask = (torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]).long()
    if config.model_type == "xlnet":
        mask = mask.flip(1)
    ids = torch.randint(5, VOCAB, shape, generator=generator)
    given = {"input_ids": ids * mask + config.pad_token_id * (1 - mask), "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0):
        types = torch.randint(0, config.type_vocab_size, shape, generator=generator)
        given["token_type_ids"] = types
    if config.model_type == "xlnet":
        given["token_type_ids"] = torch.randint(0, 3, shape, generator=generator)
    # Transformers fails on task types for choices: it does not flatten them.
    if getattr(config, "use_task_id", False) and "MultipleChoice" not in architecture:
        given["task_type_ids"] = torch.randint(0, 3, shape, generator=generator)
    return given


def packed(given: dict[str, Tensor]) -> Batch:
    return from_padded(
        given["input_ids"],
        given["attention_mask"],
        given.get("token_type_ids"),
        task_type_ids=given.get("task_type_ids"),
    )[0]


def their_outputs(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hidden states and logits of the tokens by our names."""
    name, keep = type(model).__name__, given["attention_mask"].bool()
    head = FAMILIES[model.config.model_type].architectures[name]
    with torch.no_grad():
        # Not the last of `hidden_states`, which is before the final norm in some families.
        last = model.base_model(**given).last_hidden_state
        if "MultipleChoice" in name:
            given = {key: value[:, None] for key, value in given.items()}
        out = model(**given)
    found = {"hidden": last[keep]}
    if not head.heads and head.pooler:
        found["pooled"] = out.pooler_output
    for spec in head.heads:
        if spec.kind == "span":
            logits = torch.stack((out.start_logits, out.end_logits), -1)
        elif spec.kind == "beam_span":
            logits = model.start_logits(last).detach()
        else:
            names = {"mlm": "prediction_logits", "nsp": "seq_relationship_logits"}
            several = names.get(spec.kind, f"{spec.kind}_logits")
            logits = out.get(several, out.get("logits"))
        of_tokens = spec.kind in ("mlm", "tokens", "span", "discriminator", "beam_span")
        found[spec.kind] = logits[keep] if of_tokens else logits
    return found


def our_outputs(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        out = model(packed(given))
    found = {"hidden": out.hidden, **out.logits}
    if not out.logits and out.pooled is not None:
        found["pooled"] = out.pooled
    return found


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert_close(ours[name], tensor, name=name)
        assert tensor.std() > 0.01


def read_by_them(architecture: str, folder: Path) -> Any:
    """The folder in Transformers, with no tensor missing and none too many."""
    model, info = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    return model.eval()


def there_and_back(model: Any, folder: Path) -> None:
    """Compare what we compute with theirs, and what they compute from what we save."""
    architecture = type(model).__name__
    given = padded(model.config, architecture)
    model.save_pretrained(folder / "theirs")
    theirs = their_outputs(model, given)
    ours = load(folder / "theirs")
    assert_same(our_outputs(ours, given), theirs)
    save(ours, folder / "ours")
    again = read_by_them(architecture, folder / "ours")
    assert_same(their_outputs(again, given), theirs)
    assert again.config.architectures == [architecture]
    written = {**model.config.to_dict(), **ALIKE}
    for key, value in again.config.to_dict().items():
        if key in FAMILIES[model.config.model_type].defaults:
            assert value == written[key], key
