"""The files of a model folder: names, checksums, and config.json with checks of its keys; no tensor
is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ownbert import limits
from ownbert.checks import (
    Check,
    anything,
    dict_of,
    either,
    list_of,
    maybe,
    number,
    object_,
    one_of,
    record,
    text,
    truth,
    whole,
)
from ownbert.config import RATE_CHECK
from ownbert.config.encoder import LAYER_GATES
from ownbert.config.head_spec import HEAD_KEYS, HEADS, MOST_LABELS
from ownbert.exceptions import InputError, MissingError
from ownbert.families import all_kinds
from ownbert.families.bert import BERT
from ownbert.files.folders import inside
from ownbert.files.json_files import read_json
from ownbert.files.writing import checksum
from ownbert.language.messages import Message

CONFIG = "config.json"
# File in a ``fit`` folder, which may have linear models and no network.
BLEND = "blend.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
# In order of preference; an index maps tensors to files.
FORMS = (WEIGHTS, f"{WEIGHTS}.index.json", PICKLED, f"{PICKLED}.index.json")
# Weights of a quantized folder (weights.py), and the key of its config.json.
QUANTIZED = "ownbert-int8.safetensors"
QUANTIZED_KEY = "ownbert_quantization"
# Key in config.json with the record of agreement in bfloat16 (description.py).
AGREEMENT_KEY = "ownbert_precision"
INDEX = record({"weight_map": dict_of(text)}, required=("weight_map",))


def no_network(folder: Path) -> str:
    """The error message for a ``fit`` folder without a network."""
    return Message(
        "{folder} has linear models but no network, which is needed here; predict, "
        "evaluate, explain, errors and serve use the linear models, and ownbert fit with "
        "more {--minutes} trains a network",
        folder,
    )


def weights_form(folder: Path) -> Path | None:
    """The weight file, or the index of several; None if there is none."""
    return next((folder / name for name in FORMS if (folder / name).is_file()), None)


def weights_checksums(folder: Path) -> dict[str, dict[str, int]]:
    """Sizes and checksums of the weight files, by name; empty if there are none."""
    form = weights_form(folder)
    if form is None:
        return {}
    names = {form.name}
    if form.suffix == ".json":
        names |= set(read_json(form, check=INDEX)["weight_map"].values())
    return {name: checksum(inside(folder, name, form)) for name in sorted(names)}


def model_checksums(folder: Path) -> list[list[Any]]:
    """The files of a model folder that may affect its output, with their checksums, as JSON."""
    kinds = (".safetensors", ".bin", ".json", ".txt", ".model")
    paths = (*folder.iterdir(), *folder.glob("source/*"))  # the vocabulary of the source language
    # Hidden files are temporary.
    files = sorted(p for p in paths if p.suffix in kinds and not p.name.startswith("."))
    return [[str(path.relative_to(folder)), checksum(path)] for path in files]


def is_quantized(values: Mapping[str, Any]) -> bool:
    """Whether a config.json belongs to a quantized folder."""
    return values.get(QUANTIZED_KEY) is not None


def without_agreement(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config.json without the record, for other weights."""
    return {key: value for key, value in values.items() if key != AGREEMENT_KEY}


def require_float(values: Mapping[str, Any], folder: str | Path) -> None:
    """Reject a quantized folder where float weights are required."""
    if is_quantized(values):
        refuse_quantized(folder)


def refuse_quantized(folder: str | Path) -> NoReturn:
    """Raise the ``InputError`` for int8 weights where floats are required."""
    raise InputError(
        "{folder} is quantized to int8 and cannot be trained, exported or quantized; use the "
        "folder that it was made from",
        folder,
    )


_LARGEST = 2**63 - 1  # EncoderConfig checks narrower bounds
_WHOLE = whole(-_LARGEST, _LARGEST)
_NUMBER = number(-1e300, 1e300)
_TAGS = dict_of(list_of(text, most=MOST_LABELS), most=limits.FEATURES)
_THRESHOLDS = list_of(number(0, 1), most=MOST_LABELS)
_TASK = record(
    {
        "name": text,
        "settings": maybe(object_),
        "columns": maybe(dict_of(maybe(text))),
        "max_length": maybe(whole(1, 1 << 20)),
        "pair": truth,
        "positive": maybe(text),
        "features": _TAGS,
        "first_label": maybe(_NUMBER),
        "threshold": maybe(either(_NUMBER, _THRESHOLDS, wanted="a number, or several")),
        "label_type": maybe(one_of("bool", "int", "float")),
    }
)
_QUANTIZATION = record(
    {
        "weights": one_of("int8"),
        "scales": one_of("channel"),
        "activations": one_of("token"),
        "smoothing": number(0, 1),
    },
    required=("weights", "scales", "activations"),
    closed=True,
)
_AGREEMENT = record(
    {"bfloat16": text, "weights": dict_of(dict_of(whole(0, 1 << 62)), most=100_000)},
    required=("bfloat16", "weights"),
)
_SIZES = either(_WHOLE, list_of(_WHOLE), wanted="a whole number, or height and width")
# Keys that are not defaults of a family.
FURTHER_KEYS: dict[str, Check] = {
    "model_type": text,
    "architectures": maybe(list_of(text)),
    "tokenizer_class": maybe(text),
    "problem_type": maybe(text),
    "num_labels": maybe(whole(1, MOST_LABELS)),
    "id2label": maybe(dict_of(anything, most=MOST_LABELS)),
    "label2id": maybe(dict_of(anything, most=MOST_LABELS)),
    "decoder_start_token_id": maybe(_WHOLE),
    "eos_token_id": maybe(either(_WHOLE, list_of(_WHOLE), wanted="an id, or a list of them")),
    "pruned_heads": maybe(dict_of(list_of(_WHOLE))),
    "image_size": _SIZES,
    "patch_size": _SIZES,
    "classifier_activation": either(truth, text, wanted="true, false or an activation"),
    **dict.fromkeys(("classifier_dropout", "cls_dropout", "pooler_dropout"), maybe(RATE_CHECK)),
    **dict.fromkeys(
        (
            *("position_buckets", "conv_kernel_size", "conv_groups", "embedding_size"),
            *("attention_head_size", "pooler_hidden_size"),
        ),
        maybe(_WHOLE),
    ),
    **dict.fromkeys(("norm_rel_ebd", "conv_act"), maybe(text)),
    "share_att_key": maybe(truth),
    "pos_att_type": maybe(either(text, list_of(text), wanted="a name, or a list of them")),
    "decoder_vocab_size": maybe(_WHOLE),
    "pooler_output_size": maybe(_WHOLE),
    "tie_word_embeddings": maybe(truth),
    "dtype": maybe(text),
    "torch_dtype": maybe(text),
    "ownbert_heads": maybe(list_of(HEAD_KEYS, most=len(HEADS))),
    "ownbert_pooler": truth,
    "ownbert_position_embedding_type": maybe(text),
    "ownbert_max_position_embeddings": _WHOLE,
    "ownbert_norm_first": truth,
    "ownbert_layer_gate": maybe(one_of(*LAYER_GATES)),
    "ownbert_attention_blur": maybe(_NUMBER),
    "ownbert_task": maybe(_TASK),
    "ownbert_vocabulary": maybe(text),
    "ownbert_features": maybe(_TAGS),
    QUANTIZED_KEY: maybe(_QUANTIZATION),
    AGREEMENT_KEY: maybe(_AGREEMENT),
}


def _default_checks() -> dict[str, Check]:
    """Checks of each family's own keys, by the types of their defaults."""
    checks = {bool: truth, int: _WHOLE, float: _NUMBER, str: text}
    return {
        key: maybe(RATE_CHECK if "dropout" in key else checks[type(default)])
        for kind in all_kinds()
        for key, default in kind.defaults.items()
        if type(default) in checks
    }


CONFIG_KEYS = record({**_default_checks(), **FURTHER_KEYS})
# Keys of BERT's configs without model_type; ALBERT and ELECTRA also have an embedding_size.
_OF_BERT = {"vocab_size", "hidden_size", "num_attention_heads", "type_vocab_size"}


def read_config(path: Path) -> Mapping[str, Any]:
    """Read the values of a config.json; without model_type it is BERT's."""
    folder = path.parent
    if not folder.exists():
        raise MissingError(
            "no such folder: {folder}; write a model on the hub as hf:org/name", folder
        )
    if not path.exists():
        if (folder / BLEND).is_file():
            raise InputError(no_network(folder))
        raise MissingError("no such file: {path}; is {folder} a model folder?", path, folder)
    values = read_json(path, check=CONFIG_KEYS)
    if "model_type" not in values and values.keys() >= _OF_BERT and "embedding_size" not in values:
        return {"model_type": BERT.model_type, **values}
    return values
