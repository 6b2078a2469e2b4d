"""The special tokens of a tokenizer, and the attributes that get and set them.

A tokenizer keeps them in one dict, from attribute names (``mask_token``) to tokens, and from
``additional_special_tokens`` to a list of tokens. Attributes that are not set are missing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ownbert.exceptions import InputError
from ownbert.text.folder.build import special_token
from ownbert.text.styles import SPECIAL_NAMES, T5, Style, additional_tokens

if TYPE_CHECKING:
    from tokenizers import AddedToken

ADDITIONAL = "additional_special_tokens"
ATTRIBUTES = (*SPECIAL_NAMES, ADDITIONAL)


def text_of(token: "str | AddedToken") -> str:
    return token if isinstance(token, str) else token.content


def token_and_id(name: str) -> tuple[Any, Any]:
    """The properties ``name`` (``mask_token``) and ``{name}_id`` of a tokenizer.

    Both are None if the token is not set. Setting one does not add it to the vocabulary.
    """

    def get_token(tokenizer: Any) -> str | None:
        token = tokenizer._special.get(name)
        return None if token is None else text_of(token)

    def set_token(tokenizer: Any, token: "str | AddedToken | None") -> None:
        set_special(tokenizer._special, name, token)

    def get_id(tokenizer: Any) -> int | None:
        return tokenizer.convert_tokens_to_ids(get_token(tokenizer))

    def set_id(tokenizer: Any, index: int | None) -> None:
        set_token(tokenizer, None if index is None else tokenizer.convert_ids_to_tokens(index))

    return property(get_token, set_token), property(get_id, set_id)


def initial_tokens(
    style: Style | None, settings: Mapping[str, Any], *, built: bool
) -> dict[str, Any]:
    """The special tokens in a constructor's ``settings``, else those of the family."""
    special: dict[str, Any] = {}
    for name in SPECIAL_NAMES:
        token = settings.get(name, style.special.get(name) if style else None)
        if isinstance(token, str) and style:
            token = special_token(style, name, token, built=built)
        set_special(special, name, token)
    more = settings.get(ADDITIONAL)
    if more is None or (style is T5 and not any("<extra_id_" in text_of(t) for t in more)):
        more = [*(more or ()), *(additional_tokens(style, settings) if style else ())]
    set_special(special, ADDITIONAL, list(more))
    return special


def set_special(special: dict[str, Any], name: str, value: Any) -> None:
    """Set one attribute in ``special``; None removes it.

    Raises:
        InputError: anything but tokens is given.
    """
    from tokenizers import AddedToken

    if name == ADDITIONAL:
        value = value or []
        if isinstance(value, str) or not all(isinstance(t, str | AddedToken) for t in value):
            raise InputError(f"{ADDITIONAL} must be a list of tokens, not {value!r}")
        value = list(value) or None
    elif value is not None and not isinstance(value, str | AddedToken):
        raise InputError(f"{name} must be a token, not {value!r}")
    if value is None:
        special.pop(name, None)
    else:
        special[name] = value


def update_special(
    special: dict[str, Any], changes: Mapping[str, Any], *, keep_additional: bool
) -> list[Any]:
    """Set special tokens, plain strings as tokens that match exactly; return those to add to the
    vocabulary.

    With ``keep_additional`` additional special tokens are appended to the existing ones.

    Raises:
        InputError: an attribute is unknown.
    """
    new: list[Any] = []
    for name, value in changes.items():
        if name not in ATTRIBUTES:
            raise InputError(
                f"{name!r} is not a special token; the special tokens are {', '.join(ATTRIBUTES)}"
            )
        if name != ADDITIONAL:
            tokens = [_exact(value)]
            set_special(special, name, tokens[0])
        else:
            if not isinstance(value, list | tuple):
                set_special(special, name, value)  # raises InputError
            old = special.get(ADDITIONAL, []) if keep_additional else []
            known = {text_of(token) for token in old}
            tokens = [_exact(token) for token in value if text_of(token) not in known]
            if tokens:
                set_special(special, name, [*old, *tokens])
        new += tokens
    return new


def _exact(token: Any) -> Any:
    from tokenizers import AddedToken

    return AddedToken(token, normalized=False, special=True) if type(token) is str else token


def ordered(special: Mapping[str, Any]) -> dict[str, Any]:
    """``special`` in the order in which Transformers lists the attributes."""
    return {name: special[name] for name in ATTRIBUTES if name in special}


def texts(special: Mapping[str, Any]) -> dict[str, Any]:
    """``special`` with the texts of tokens instead of tokens."""
    return {
        name: [text_of(token) for token in value] if isinstance(value, list) else text_of(value)
        for name, value in special.items()
    }


def unique_tokens(special: Mapping[str, Any]) -> "list[str | AddedToken]":
    """All special tokens in order, each text once."""
    tokens: dict[str, Any] = {}
    for value in ordered(special).values():
        for token in value if isinstance(value, list) else [value]:
            tokens.setdefault(text_of(token), token)
    return list(tokens.values())
