"""The ``tokenizers`` object behind a tokenizer of Transformers' names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ownbert.errors import InputError
from ownbert.text.bert import split_at_blanks
from ownbert.text.build import build, register, surround
from ownbert.text.files import CASE_SETTINGS, kind_of, never_split_of, read_backend
from ownbert.text.styles import BERT, ROBERTA, Style

if TYPE_CHECKING:
    import tokenizers

    from ownbert.hf.tokenizers.tokenizer import PreTrainedTokenizerFast


def make_backend(
    style: Style | None, files: Mapping[str, Any], settings: dict[str, Any]
) -> "tuple[tokenizers.Tokenizer, bool]":
    """The backend of the files that are given, and whether it was built from a family's own ones.

    Takes ``tokenizer_object``, ``from_slow`` out of ``settings``.
    """
    from tokenizers import Tokenizer

    given = settings.pop("tokenizer_object", None)
    from_slow = settings.pop("from_slow", False)
    if given is not None:
        return Tokenizer.from_str(given.to_str()), False
    if files.get("tokenizer_file") is not None and not from_slow:
        return read_backend(files["tokenizer_file"]), False
    needed = {} if style is None else style.files
    missing = [name for name in needed if files.get(name) is None]
    if style is None or missing:
        names = ", ".join([*missing, "tokenizer_file"])
        raise InputError(f"a tokenizer needs its files: {names} or tokenizer_object")
    never_split_of(settings)
    plain = {name: value for name, value in settings.items() if name not in ("unk_token",)}
    unk = settings.get("unk_token") or style.special["unk_token"]
    return build(style, {name: files[name] for name in needed}, {**plain, "unk_token": unk}), True


def prepared(
    tokenizer: "PreTrainedTokenizerFast",
    listed: list[Any],
    settings: Mapping[str, Any],
    *,
    built: bool,
) -> None:
    """Register special tokens and let ``settings`` change the backend's rules, as 4.57.6 does."""
    backend, style = tokenizer.backend_tokenizer, tokenizer.style
    register(backend, tokenizer.all_special_tokens_extended, listed)
    _set_prefix(backend, tokenizer.add_prefix_space)
    if style is BERT:
        if settings.get("do_basic_tokenize", True):
            _set_case(backend, settings)
        elif kind_of(backend) == "wordpiece":
            split_at_blanks(backend)
    if style is None or not (built or style is ROBERTA):
        return
    cls, sep = tokenizer.cls_token, tokenizer.sep_token
    if style not in (BERT, ROBERTA):
        # Transformers builds these families with their own two tokens, whatever is asked for.
        cls, sep = style.special["cls_token"], style.special["sep_token"]
    if cls is None or sep is None:
        return
    if built:
        surround(backend, style, cls, sep, add_prefix_space=tokenizer.add_prefix_space)
    _set_offsets(backend, tokenizer.add_prefix_space, bool(settings.get("trim_offsets")))


def _set_prefix(backend: "tokenizers.Tokenizer", add_prefix_space: bool) -> None:
    from tokenizers import pre_tokenizers

    part = backend.pre_tokenizer
    if isinstance(part, pre_tokenizers.ByteLevel) and part.add_prefix_space != add_prefix_space:
        part.add_prefix_space = add_prefix_space
        backend.pre_tokenizer = part


def _set_offsets(backend: "tokenizers.Tokenizer", add_prefix_space: bool, trim: bool) -> None:
    import json

    from tokenizers import processors

    part = backend.post_processor
    if not isinstance(part, processors.RobertaProcessing):
        return
    state = json.loads(part.__getstate__())
    backend.post_processor = processors.RobertaProcessing(
        sep=tuple(state["sep"]),
        cls=tuple(state["cls"]),
        add_prefix_space=add_prefix_space,
        trim_offsets=trim,
    )


def _set_case(backend: "tokenizers.Tokenizer", settings: Mapping[str, Any]) -> None:
    from tokenizers import normalizers

    normalizer = backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return
    for name, attribute in CASE_SETTINGS.items():
        setattr(normalizer, attribute, settings[name])
    backend.normalizer = normalizer
