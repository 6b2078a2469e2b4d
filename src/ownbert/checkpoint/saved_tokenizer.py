"""The tokenizer of a model folder, with a check that it is the one saved with the model."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ownbert.checkpoint.description import Description
from ownbert.checkpoint.model_files import CONFIG, read_config
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.hub import model_folder
from ownbert.text.tokenizer import Tokenizer

# Key in config.json for detecting a replaced tokenizer: the number of tokens and their hash. Tokens
# may be appended later.
VOCABULARY = "ownbert_vocabulary"


def load_tokenizer(
    folder: str | Path | Description, *, config: EncoderConfig | None = None
) -> Tokenizer:
    """Load the tokenizer of a model folder.

    Args:
        folder: model folder, or its description, to avoid reading config.json again.
        config: configuration of the model; by default the description's.

    Raises:
        InputError: it has more tokens than ``config``, or is not the one that was saved.
    """
    values: Mapping[str, Any] = {}
    if isinstance(folder, Description):
        assert folder.folder is not None
        values, config, folder = folder.values, config or folder.config, folder.folder
    elif ((folder := model_folder(folder)) / CONFIG).exists():
        values = read_config(folder / CONFIG)
    tokenizer = Tokenizer.load(folder, values)
    if config is not None and tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            "{folder}: the tokenizer has {vocab_size} tokens, but the model only "
            "{config_vocab_size}; they do not belong together",
            folder,
            tokenizer.vocab_size,
            config.vocab_size,
        )
    saved = values.get(VOCABULARY)
    if isinstance(saved, str) and saved != _fingerprint(tokenizer, _token_count(saved)):
        raise InputError(
            "{folder}: the vocabulary is not the one that the model was trained with; put the "
            "original tokenizer files back",
            folder,
        )
    return tokenizer


def vocabulary_fingerprint(tokenizer: Tokenizer) -> str:
    """The number of tokens, and a hash of the tokens in the order of their ids."""
    return _fingerprint(tokenizer, tokenizer.vocab_size)


def _fingerprint(tokenizer: Tokenizer, count: int | None) -> str:
    size = tokenizer.vocab_size if count is None else min(count, tokenizer.vocab_size)
    tokens = "\n".join(tokenizer.tokens(range(size)))
    digest = hashlib.sha256(tokens.encode()).hexdigest()[:32]
    return digest if count is None else f"{size}:{digest}"


def _token_count(saved: str) -> int | None:
    """The number before the hash; folders of version 0.1 only have the hash."""
    count, sign, _ = saved.partition(":")
    return int(count) if sign and count.isdecimal() else None
