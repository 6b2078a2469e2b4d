"""The object of the ``tokenizers`` library behind a tokenizer."""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ownbert.exceptions import InputError
from ownbert.hf.tokenizers.special import text_of, unique_tokens
from ownbert.hf.tokenizers.tokenizer_files import READ_BACKEND
from ownbert.text.bert_rules import split_at_whitespace
from ownbert.text.folder.build import build, register, roberta_processing, set_post_processor
from ownbert.text.folder.tokenizer_folder import (
    apply_case_settings,
    kind_of,
    never_split_of,
    read_backend,
)
from ownbert.text.styles import BERT, ROBERTA, SPECIAL_NAMES, Style

if TYPE_CHECKING:
    import tokenizers


def make_backend(
    style: Style | None, files: Mapping[str, Any], settings: dict[str, Any]
) -> "tuple[tokenizers.Tokenizer, bool]":
    """Create a backend from files; also return whether it was built from the family's own files.

    Args:
        files: paths of the family's files and of tokenizer.json, by argument name.
        settings: arguments of the constructor; ``tokenizer_object``, ``from_slow`` and a
            tokenizer.json that has been read are removed.

    Raises:
        InputError: neither the family's files nor tokenizer.json nor an object is given.
    """
    from tokenizers import Tokenizer

    given = settings.pop("tokenizer_object", None)
    from_slow = settings.pop("from_slow", False)
    loaded = settings.pop(READ_BACKEND, None)
    if given is not None:
        return Tokenizer.from_str(given.to_str()), False
    if files.get("tokenizer_file") is not None and not from_slow:
        return loaded or read_backend(files["tokenizer_file"]), False
    needed = {} if style is None else style.files
    missing = [name for name in needed if files.get(name) is None]
    if style is None or missing:
        names = ", ".join([*missing, "tokenizer_file"])
        raise InputError(f"a tokenizer needs its files: {names} or tokenizer_object")
    never_split_of(settings)  # refuses a value that is not a list of words
    unk = settings.get("unk_token") or style.special["unk_token"]
    return build(
        style, {name: files[name] for name in needed}, {**settings, "unk_token": unk}
    ), True


def apply_settings(
    backend: "tokenizers.Tokenizer",
    style: Style | None,
    special: Mapping[str, Any],
    added: "Iterable[tokenizers.AddedToken]",
    settings: Mapping[str, Any],
    *,
    built: bool,
) -> None:
    """Register ``special`` and ``added`` tokens and apply ``settings`` to the backend's rules.

    Which settings have an effect on which family is as in Transformers 4.57.6.
    """
    register(backend, unique_tokens(special), added)
    prefix = bool(settings.get("add_prefix_space"))
    _set_prefix(backend, prefix)
    if style is BERT:
        if settings.get("do_basic_tokenize", True):
            apply_case_settings(backend, settings)
        elif kind_of(backend) == "wordpiece":
            split_at_whitespace(backend)
    if style is None or not (built or style is ROBERTA):
        return
    # Transformers builds the other families with their own two tokens, whatever the settings are.
    ends = special if style in (BERT, ROBERTA) else style.special
    if style.end not in ends or (style.start and style.start not in ends):
        return
    if built:
        names = {name: text_of(token) for name, token in ends.items() if name in SPECIAL_NAMES}
        set_post_processor(backend, style, names, add_prefix_space=prefix)
    _set_offsets(backend, prefix, bool(settings.get("trim_offsets")))


def _set_prefix(backend: "tokenizers.Tokenizer", add_prefix_space: bool) -> None:
    from tokenizers import pre_tokenizers

    part = backend.pre_tokenizer
    if isinstance(part, pre_tokenizers.ByteLevel) and part.add_prefix_space != add_prefix_space:
        part.add_prefix_space = add_prefix_space
        backend.pre_tokenizer = part


def _set_offsets(backend: "tokenizers.Tokenizer", add_prefix_space: bool, trim: bool) -> None:
    from tokenizers import processors

    part = backend.post_processor
    if not isinstance(part, processors.RobertaProcessing):
        return
    state = json.loads(part.__getstate__())
    options = {"add_prefix_space": add_prefix_space, "trim_offsets": trim}
    backend.post_processor = roberta_processing(tuple(state["sep"]), tuple(state["cls"]), **options)
