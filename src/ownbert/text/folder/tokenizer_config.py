"""Schemas of tokenizer_config.json and of other JSON files of a tokenizer."""

from pathlib import Path

from ownbert.checks import (
    Check,
    dict_of,
    either,
    list_of,
    maybe,
    number,
    record,
    text,
    truth,
    whole,
)
from ownbert.files.json_files import read_json
from ownbert.text.styles import SPECIAL_NAMES

CONFIG = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
ADDED = "added_tokens.json"

# Largest id in a vocabulary; a larger vocabulary would not fit in memory.
_LARGEST_ID = 100_000_000
_TRUTHS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_token: Check = either(
    text,
    record({"content": text, **dict.fromkeys(_TRUTHS, truth)}, required=("content",)),
    wanted="a token, or an object with its content",
)
_tokens = either(list_of(_token), dict_of(_token), wanted="tokens")
CONFIG_KEYS = record(
    {
        **dict.fromkeys(
            ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "do_basic_tokenize"),
            maybe(truth),
        ),
        **dict.fromkeys(("keep_accents", "add_prefix_space", "trim_offsets"), maybe(truth)),
        **dict.fromkeys(("clean_up_tokenization_spaces", "split_special_tokens"), maybe(truth)),
        "model_max_length": maybe(number(-1e300, 1e300)),
        "extra_ids": maybe(whole(0, 10_000)),  # T5 has 100
        **dict.fromkeys(SPECIAL_NAMES, maybe(_token)),
        **dict.fromkeys(("padding_side", "truncation_side", "tokenizer_class"), maybe(text)),
        "never_split": maybe(list_of(text)),
        "added_tokens_decoder": maybe(dict_of(_token)),
        "additional_special_tokens": maybe(list_of(_token)),
        "extra_special_tokens": maybe(_tokens),
        "model_input_names": maybe(list_of(text)),
    }
)
SPECIAL_TOKENS = dict_of(maybe(either(_token, _tokens, wanted="a token, or several")))
IDS = dict_of(whole(0, _LARGEST_ID))


def read_ids_file(path: Path) -> dict[str, int]:
    """Read a vocab.json: ids by token.

    Raises:
        InputError: the file is missing or damaged, or contains anything else.
    """
    return read_json(path, object, check=IDS)
