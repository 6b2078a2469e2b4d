"""Writes a tokenizer as files that Transformers 4.57.6 and 5 can load."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.files.writing import atomic_path, uninterrupted
from ownbert.text.folder.tokenizer_folder import (
    CASE_SETTINGS,
    CONFIG,
    TOKENIZER,
    VOCABULARY,
    kind_of,
    style_of,
    vocabulary_of,
)
from ownbert.text.styles import BERT, CLASSES, ROBERTA

if TYPE_CHECKING:
    import tokenizers

GENERIC_CLASS = "PreTrainedTokenizerFast"
# Settings of the loaded tokenizer_config.json that are preserved on saving.
PRESERVED = (
    *("tokenizer_class", "model_input_names", "additional_special_tokens", "extra_ids"),
    *("do_lower_case", "keep_accents", "add_prefix_space", "never_split"),
)


def write_folder(
    folder: str | os.PathLike[str],
    backend: "tokenizers.Tokenizer",
    *,
    special: Mapping[str, str],
    config: Mapping[str, Any],
    max_length: int | None,
) -> None:
    """Write the files of a tokenizer; no file is replaced before all are complete.

    A SentencePiece model is only written to tokenizer.json. ``config`` is the content of the
    tokenizer_config.json that was loaded.
    """
    described = _config_of(backend, special, config, max_length)
    texts = {
        TOKENIZER: backend.to_str(pretty=True) + "\n",
        CONFIG: json.dumps(described, ensure_ascii=False, indent=2) + "\n",
    }
    contents = {name: text.encode("utf-8") for name, text in texts.items()}
    write_files(folder, contents | vocabulary_files(backend))


def write_files(folder: str | os.PathLike[str], contents: Mapping[str, bytes]) -> list[Path]:
    """Write several files; no file is replaced before all are complete. Returns their paths."""
    paths = [Path(folder, name) for name in contents]
    with uninterrupted(), contextlib.ExitStack() as stack:
        # The file entered last is replaced first: the one with the rules, because a vocabulary
        # without it would be read with BERT's rules.
        for path, data in reversed([*zip(paths, contents.values(), strict=True)]):
            stack.enter_context(atomic_path(path)).write_bytes(data)
    return paths


def vocabulary_files(backend: "tokenizers.Tokenizer") -> dict[str, bytes]:
    """The files with the vocabulary but without the rules: contents by file name."""
    from tokenizers import decoders

    kind = kind_of(backend)
    if kind in ("blank", "wordpiece"):
        tokens = vocabulary_of(backend)
        return {VOCABULARY: "".join(f"{token}\n" for token in tokens).encode("utf-8")}
    if kind != "bpe" or not isinstance(backend.decoder, decoders.ByteLevel):
        return {}
    model = json.loads(backend.to_str())["model"]
    pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    ids = json.dumps(model["vocab"], ensure_ascii=False) + "\n"
    merges = "".join(f"{line}\n" for line in ["#version: 0.2", *pairs])
    return {
        ROBERTA.files["vocab_file"]: ids.encode("utf-8"),
        ROBERTA.files["merges_file"]: merges.encode("utf-8"),
    }


def _config_of(
    backend: "tokenizers.Tokenizer",
    special: Mapping[str, str],
    config: Mapping[str, Any],
    max_length: int | None,
) -> dict[str, Any]:
    from tokenizers import pre_tokenizers

    kind = kind_of(backend)
    style = style_of(backend, config.get("tokenizer_class"))
    # Transformers has no class for WordLevel models; the generic one loads them.
    own = kind != "blank" and (kind == "wordpiece" or style is not BERT)
    stated = str(config.get("tokenizer_class")).removesuffix("Fast")
    _, inputs = CLASSES.get(stated, CLASSES[style.tokenizer_class])
    described: dict[str, Any] = {
        "tokenizer_class": style.tokenizer_class if own else GENERIC_CLASS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": list(inputs),
    }
    if style is BERT:
        normalizer: Any = backend.normalizer
        described["do_basic_tokenize"] = isinstance(
            backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer
        )
        described |= {
            name: getattr(normalizer, key)
            for name, key in CASE_SETTINGS.items()
            if hasattr(normalizer, key)
        }
    of_words = ("model_input_names", "additional_special_tokens")
    kept = of_words if kind == "blank" else PRESERVED
    described |= {name: config[name] for name in kept if name in config}
    described |= special
    if max_length is not None:
        described["model_max_length"] = max_length
    return described
