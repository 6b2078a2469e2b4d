"""Builds a backend from a family's own files, for folders without tokenizer.json, and the schemas
of tokenizer_config.json and of other JSON files of a tokenizer.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json
from ownbert.files.text_files import open_text
from ownbert.text.bert_rules import wordpiece_rules
from ownbert.text.styles import (
    BERT,
    DEBERTA,
    ROBERTA,
    SPECIAL_NAMES,
    T5,
    XLM_ROBERTA,
    Style,
    additional_tokens,
)
from ownbert.text.subword import bpe_backend, pieces_backend, read_model

if TYPE_CHECKING:
    import tokenizers


PathLike = str | os.PathLike[str]
BERT_SETTINGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "do_basic_tokenize")
PIECES_SETTINGS = ("do_lower_case", "keep_accents", "split_by_punct")
HEADER = "#version"
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


def build(
    style: Style, files: Mapping[str, PathLike], settings: Mapping[str, Any]
) -> "tokenizers.Tokenizer":
    """Build the backend of a family, without special tokens and post-processor.

    Args:
        files: paths by the keys of ``style.files``.
        settings: arguments of Transformers' constructors; unknown ones are ignored.

    Raises:
        InputError: a file is damaged, or two files are inconsistent.
    """
    if style is BERT:
        known = {name: settings[name] for name in BERT_SETTINGS if name in settings}
        unk = str(settings.get("unk_token") or BERT.special["unk_token"])
        return wordpiece_rules(read_ids(files["vocab_file"]), **known, unk_token=unk)
    if style is ROBERTA:
        source = files["merges_file"]
        try:
            return bpe_backend(
                read_ids_file(Path(files["vocab_file"])),
                read_merges(source),
                add_prefix_space=bool(settings.get("add_prefix_space", False)),
            )
        except InputError:
            raise
        except ValueError as error:
            raise InputError(
                "{source} does not fit {files}: {error}", source, files["vocab_file"], error
            ) from error
    defaults = {name: style.settings[name] for name in PIECES_SETTINGS if name in style.settings}
    known = {name: bool(settings.get(name, value)) for name, value in defaults.items()}
    # The first sentinel has the last id.
    last = tuple(reversed(additional_tokens(style, settings))) if style is T5 else ()
    return pieces_backend(read_model(files["vocab_file"]), style, last=last, **known)


def special_token(
    style: Style, name: str, text: str, *, built: bool
) -> "str | tokenizers.AddedToken":
    """A special token as Transformers registers it if it is given as a plain string.

    The mask token includes the space before it, except in BERT and DeBERTa. ``built`` backends have
    no tokenizer.json.
    """
    from tokenizers import AddedToken

    if name == "mask_token" and style not in (BERT, DEBERTA):
        normalized = style is XLM_ROBERTA and not built
        return AddedToken(text, lstrip=True, rstrip=False, normalized=normalized, special=True)
    if built and (style is ROBERTA or (style is DEBERTA and name == "unk_token")):
        return AddedToken(text, normalized=True, special=True)
    return text


def special_tokens(
    style: Style, names: Mapping[str, str], settings: Mapping[str, Any] = {}
) -> list["str | tokenizers.AddedToken"]:
    """All special tokens of a backend built without tokenizer.json, in Transformers' order.

    The additional ones, which depend on the ``settings`` of the tokenizer, are the last.
    """
    named = [name for name in SPECIAL_NAMES if name in names]
    tokens = [special_token(style, name, names[name], built=True) for name in named]
    return [*tokens, *additional_tokens(style, settings)]


def register(
    backend: "tokenizers.Tokenizer",
    special: Iterable["str | tokenizers.AddedToken"],
    added: Iterable["tokenizers.AddedToken"] = (),
) -> None:
    """Register added tokens, which are never split, in place.

    Tokens in the vocabulary keep their ids; others get new ones.

    Args:
        backend: the tokenizer.
        special: special tokens; those given as plain strings are skipped if already registered.
        added: other tokens, registered before the special ones.
    """
    from tokenizers import AddedToken

    special, tokens = list(special), list(added)
    names = {str(token.content if isinstance(token, AddedToken) else token) for token in special}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    known |= {token.content for token in tokens}
    for token in tokens:
        token.special = token.special or token.content in names
    for token in special:
        if isinstance(token, AddedToken):
            token.special = True
            tokens.append(token)
        elif token not in known:
            known.add(token)
            tokens.append(AddedToken(token, special=True))
    backend.add_tokens(tokens)


def set_post_processor(
    backend: "tokenizers.Tokenizer",
    style: Style,
    special: Mapping[str, str],
    *,
    add_prefix_space: bool = False,
) -> None:
    """Set the post-processor, in place: special tokens around single texts and pairs."""
    from tokenizers import processors

    sep_token = special[style.end]
    sep = (sep_token, backend.token_to_id(sep_token))
    if style.start is None:
        backend.post_processor = processors.TemplateProcessing(
            single=["$A", sep_token], pair=["$A", sep_token, "$B", sep_token], special_tokens=[sep]
        )
        return
    cls_token = special[style.start]
    cls = (cls_token, backend.token_to_id(cls_token))
    if style.cls_last:
        backend.post_processor = processors.TemplateProcessing(
            single=["$A", sep_token, f"{cls_token}:2"],
            pair=["$A", sep_token, "$B:1", f"{sep_token}:1", f"{cls_token}:2"],
            special_tokens=list(dict([cls, sep]).items()),
        )
        return
    if style is ROBERTA:
        # By position, because tokenizers 0.23 renames ``cls`` to ``cls_token``.
        backend.post_processor = processors.RobertaProcessing(
            sep, cls, add_prefix_space=add_prefix_space
        )
        return
    pair = [cls_token, "$A", sep_token, "$B:1", f"{sep_token}:1"]
    if style.double_sep:
        pair = [cls_token, "$A", sep_token, sep_token, "$B", sep_token]
    backend.post_processor = processors.TemplateProcessing(
        single=[cls_token, "$A", sep_token],
        pair=pair,
        special_tokens=list(dict([cls, sep]).items()),
    )


def read_ids(path: PathLike) -> dict[str, int]:
    """Read the ids of a vocab.txt like Transformers: a token's id is the index of its last line."""
    return {token: number - 1 for number, token in open_text(path, internal=True)}


def read_merges(path: PathLike) -> list[tuple[str, str]]:
    """Read a merges.txt: a version line, then two tokens per line, in the order of priority.

    Raises:
        InputError: a line does not have two tokens.
    """
    merges = []
    for line_number, line in open_text(path, internal=True):
        parts = line.split()
        if not parts or (line_number == 1 and line.startswith(HEADER)):
            continue
        if len(parts) != 2:
            raise InputError(
                "{path}, line {line_number}: expected two tokens, separated by a space",
                Path(path),
                line_number,
            )
        merges.append((parts[0], parts[1]))
    return merges


def read_ids_file(path: Path) -> dict[str, int]:
    """Read a vocab.json: ids by token.

    Raises:
        InputError: the file is missing or damaged, or contains anything else.
    """
    return read_json(path, object, check=IDS)
