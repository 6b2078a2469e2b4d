"""The special tokens of a tokenizer as attributes: ``mask_token``, ``mask_token_id`` and so on."""

from typing import TYPE_CHECKING, Any

from ownbert.errors import InputError
from ownbert.text.styles import SPECIAL_NAMES

if TYPE_CHECKING:
    from tokenizers import AddedToken

ADDITIONAL = "additional_special_tokens"


def text_of(token: "str | AddedToken") -> str:
    return token if isinstance(token, str) else token.content


def plain(value: Any) -> Any:
    """Tensors and arrays as lists and numbers, inside of lists too."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


class _Token:
    """``tokenizer.mask_token``: the token, or None where it is not set."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, owner: "SpecialTokens | None", _: type | None = None) -> Any:
        if owner is None:
            return self
        token = owner.special_tokens_map_extended.get(self.name)
        return None if token is None else text_of(token)

    def __set__(self, owner: "SpecialTokens", value: "str | AddedToken | None") -> None:
        owner.set_special(self.name, value)


class _Id:
    """``tokenizer.mask_token_id``; setting it chooses the token of that id."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, owner: "SpecialTokens | None", _: type | None = None) -> Any:
        if owner is None:
            return self
        token = getattr(owner, self.name)
        return None if token is None else owner.convert_tokens_to_ids(token)

    def __set__(self, owner: "SpecialTokens", value: int | None) -> None:
        owner.set_special(self.name, None if value is None else owner.convert_ids_to_tokens(value))


class SpecialTokens:
    """What a tokenizer knows of its special tokens; setting one does not add it."""

    bos_token, bos_token_id = _Token("bos_token"), _Id("bos_token")
    eos_token, eos_token_id = _Token("eos_token"), _Id("eos_token")
    unk_token, unk_token_id = _Token("unk_token"), _Id("unk_token")
    sep_token, sep_token_id = _Token("sep_token"), _Id("sep_token")
    pad_token, pad_token_id = _Token("pad_token"), _Id("pad_token")
    cls_token, cls_token_id = _Token("cls_token"), _Id("cls_token")
    mask_token, mask_token_id = _Token("mask_token"), _Id("mask_token")
    SPECIAL_TOKENS_ATTRIBUTES = (*SPECIAL_NAMES, ADDITIONAL)

    def __init__(self):
        self._special: dict[str, str | AddedToken] = {}
        self._additional: list[str | AddedToken] = []

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        raise NotImplementedError

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        raise NotImplementedError

    def set_special(self, name: str, value: "str | AddedToken | None") -> None:
        from tokenizers import AddedToken

        if value is not None and not isinstance(value, str | AddedToken):
            raise InputError(f"{name} must be a token, not {value!r}")
        if value is None:
            self._special.pop(name, None)
        else:
            self._special[name] = value

    @property
    def additional_special_tokens(self) -> list[str]:
        return [text_of(token) for token in self._additional]

    @additional_special_tokens.setter
    def additional_special_tokens(self, tokens: "list[str | AddedToken] | None") -> None:
        from tokenizers import AddedToken

        tokens = tokens or []
        if isinstance(tokens, str) or not all(isinstance(t, str | AddedToken) for t in tokens):
            raise InputError(f"{ADDITIONAL} must be a list of tokens, not {tokens!r}")
        self._additional = list(tokens)

    @property
    def additional_special_tokens_ids(self) -> list[int]:
        return self.convert_tokens_to_ids(self.additional_special_tokens)

    @property
    def special_tokens_map_extended(self) -> "dict[str, Any]":
        """Attribute names to tokens, with what the library knows of how they match."""
        found: dict[str, Any] = {n: self._special[n] for n in SPECIAL_NAMES if n in self._special}
        return {**found, ADDITIONAL: list(self._additional)} if self._additional else found

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        """Attribute names to tokens."""
        return {
            name: [text_of(token) for token in value] if name == ADDITIONAL else text_of(value)
            for name, value in self.special_tokens_map_extended.items()
        }

    @property
    def all_special_tokens_extended(self) -> "list[str | AddedToken]":
        found: dict[str, str | AddedToken] = {}
        for token in [*(self._special[n] for n in SPECIAL_NAMES if n in self._special)]:
            found.setdefault(text_of(token), token)
        for token in self._additional:
            found.setdefault(text_of(token), token)
        return list(found.values())

    @property
    def all_special_tokens(self) -> list[str]:
        return [text_of(token) for token in self.all_special_tokens_extended]

    @property
    def all_special_ids(self) -> list[int]:
        return self.convert_tokens_to_ids(self.all_special_tokens)
