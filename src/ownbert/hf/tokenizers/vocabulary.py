"""A tokenizer's vocabulary: tokens to ids and back, and tokens that are added."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ownbert.errors import InputError
from ownbert.hf.tokenizers.special import ADDITIONAL, SpecialTokens, plain, text_of
from ownbert.text.styles import WITH_TYPES, Style

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import AddedToken


class Vocabulary(SpecialTokens):
    """The vocabulary of a backend, and the settings that all parts of a tokenizer share."""

    style: Style | None = None
    model_input_names: Sequence[str] = WITH_TYPES
    padding_side: str = "right"
    truncation_side: str = "right"
    model_max_length: int
    pad_token_type_id: int
    split_special_tokens: bool
    add_prefix_space: bool
    init_kwargs: dict[str, Any]
    _tokenizer: "tokenizers.Tokenizer"

    def __init__(self):
        super().__init__()
        # A copy of the backend with rules that a saved one cannot have, once it is needed.
        self._copy: tokenizers.Tokenizer | None = None

    @property
    def backend_tokenizer(self) -> "tokenizers.Tokenizer":
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens left out; ``len`` counts them."""
        return self._tokenizer.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        return True

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.get_vocab(with_added_tokens=True)

    @property
    def vocab(self) -> dict[str, int]:
        return self.get_vocab()

    @property
    def ids_to_tokens(self) -> dict[int, str]:
        return {index: token for token, index in sorted(self.get_vocab().items(), key=_second)}

    @property
    def added_tokens_decoder(self) -> "dict[int, AddedToken]":
        return self._tokenizer.get_added_tokens_decoder()

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        added = self.added_tokens_decoder
        return {added[index].content: index for index in sorted(added)}

    def get_added_vocab(self) -> dict[str, int]:
        return self.added_tokens_encoder

    def convert_tokens_to_ids(self, tokens: "str | Iterable[str] | None") -> Any:
        """The id of a token or of each; that of ``unk_token`` where there is none."""
        if tokens is None:
            return None
        if isinstance(tokens, str):
            index = self._tokenizer.token_to_id(tokens)
            if index is not None:
                return index
            unknown = self.unk_token
            return None if unknown is None else self._tokenizer.token_to_id(unknown)
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The token of an id or of each; None for an id that there is not."""
        ids = plain(ids)
        if isinstance(ids, int):
            return self._tokenizer.id_to_token(ids) if ids >= 0 else None
        skip = set(self.all_special_ids) if skip_special_tokens else ()
        return [self.convert_ids_to_tokens(int(index)) for index in ids if int(index) not in skip]

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens that are never split; how many of them are new to the vocabulary."""
        if not new_tokens:
            return 0
        wanted = list(new_tokens) if isinstance(new_tokens, list | tuple) else [new_tokens]
        self._copy = None
        if special_tokens:
            return self._tokenizer.add_special_tokens(wanted)
        return self._tokenizer.add_tokens(wanted)

    def add_special_tokens(
        self,
        special_tokens_dict: Mapping[str, Any],
        replace_additional_special_tokens: bool = True,
    ) -> int:
        """Set attributes such as ``mask_token`` and add their tokens; how many are new."""
        from tokenizers import AddedToken

        def exact(token: Any) -> Any:
            return (
                AddedToken(token, normalized=False, special=True) if type(token) is str else token
            )

        added = []
        for name, value in special_tokens_dict.items():
            if name not in self.SPECIAL_TOKENS_ATTRIBUTES:
                names = ", ".join(self.SPECIAL_TOKENS_ATTRIBUTES)
                raise InputError(f"{name!r} is no special token; they are {names}")
            if name != ADDITIONAL:
                self.set_special(name, exact(value))
                added.append(exact(value))
                continue
            old = [] if replace_additional_special_tokens else self._additional
            known = [text_of(token) for token in old]
            fresh = [exact(token) for token in value if text_of(token) not in known]
            if fresh:
                self.additional_special_tokens = [*old, *fresh]
            added += fresh
        return self.add_tokens(added, special_tokens=True)


def _second(pair: tuple[str, int]) -> int:
    return pair[1]
