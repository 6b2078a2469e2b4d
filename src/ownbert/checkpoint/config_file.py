"""config.json of a model folder: checks of its keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ownbert import limits
from ownbert.checkpoint.model_files import AGREEMENT_KEY, BLEND, QUANTIZED_KEY, no_network
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
from ownbert.config.encoder import LAYER_GATES
from ownbert.config.head_spec import HEAD_KEYS, HEADS, MOST_LABELS
from ownbert.exceptions import InputError, MissingError
from ownbert.families import all_kinds
from ownbert.families.bert import BERT
from ownbert.files.json_files import read_json

_LARGEST = 2**63 - 1  # EncoderConfig checks narrower bounds
_WHOLE = whole(-_LARGEST, _LARGEST)
_NUMBER = number(-1e300, 1e300)
_TAGS = dict_of(list_of(text, most=MOST_LABELS), most=limits.FEATURES)
_TASK = record(
    {
        "name": text,
        "settings": maybe(object_),
        "columns": maybe(dict_of(maybe(text))),
        "max_length": maybe(whole(1, 1 << 20)),
        "pair": truth,
        "features": _TAGS,
        "first_label": maybe(_NUMBER),
        "threshold": maybe(_NUMBER),
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
_KEYS: dict[str, Check] = {
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
    "classifier_dropout": maybe(_NUMBER),
    **dict.fromkeys(("cls_dropout", "pooler_dropout"), maybe(_NUMBER)),
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
        key: maybe(checks[type(default)])
        for kind in all_kinds()
        for key, default in kind.defaults.items()
        if type(default) in checks
    }


CONFIG_KEYS = record({**_default_checks(), **_KEYS})
# Keys of BERT's configs without model_type; ALBERT and ELECTRA also have an embedding_size.
_OF_BERT = {"vocab_size", "hidden_size", "num_attention_heads", "type_vocab_size"}


def read_config(path: Path) -> Mapping[str, Any]:
    """Read the values of a config.json; without model_type it is BERT's.

    Raises:
        InputError: the file is missing or damaged, or a value is invalid.
    """
    folder = path.parent
    if not folder.exists():
        raise MissingError(f"no such folder: {folder}; write a model on the hub as hf:org/name")
    if not path.exists():
        if (folder / BLEND).is_file():
            raise InputError(no_network(folder))
        raise MissingError(f"no such file: {path}; is {folder} a model folder?")
    values = read_json(path, check=CONFIG_KEYS)
    if "model_type" not in values and values.keys() >= _OF_BERT and "embedding_size" not in values:
        return {"model_type": BERT.model_type, **values}
    return values
