"""What stands around a text, and inputs from ids that are there already."""

from typing import Any

from ownbert.errors import InputError
from ownbert.hf.tokenizers.options import CallOptions
from ownbert.hf.tokenizers.vocabulary import Vocabulary

Ids = list[int]


class Surroundings(Vocabulary):
    """The special tokens around one text or two, for ids."""

    def truncate_sequences(
        self,
        ids: Ids,
        pair_ids: Ids | None = None,
        num_tokens_to_remove: int = 0,
        truncation_strategy: str = "longest_first",
        stride: int = 0,
    ) -> tuple[Ids, Ids | None, Ids]:
        """The ids of both texts cut, and what was cut off."""
        options = CallOptions(truncation=str(truncation_strategy), stride=stride)
        return cut(ids, pair_ids, num_tokens_to_remove, options, self.truncation_side)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens stand around one text, or around and between two."""
        return self._tokenizer.num_special_tokens_to_add(pair)

    @property
    def max_len_single_sentence(self) -> int:
        return self.model_max_length - self.num_special_tokens_to_add(False)

    @property
    def max_len_sentences_pair(self) -> int:
        return self.model_max_length - self.num_special_tokens_to_add(True)

    def build_inputs_with_special_tokens(
        self, token_ids_0: Ids, token_ids_1: Ids | None = None
    ) -> Ids:
        """Ids with the special tokens around them."""
        cls, sep = self._ends
        first = cls + list(token_ids_0) + sep
        if token_ids_1 is None:
            return first
        return first + self._between + list(token_ids_1) + sep

    def create_token_type_ids_from_sequences(
        self, token_ids_0: Ids, token_ids_1: Ids | None = None
    ) -> Ids:
        """0 for the first text, 1 for the second, special tokens counted; RoBERTa has 0 alone."""
        first = len(self.build_inputs_with_special_tokens(token_ids_0))
        if token_ids_1 is None:
            return [0] * first
        both = len(self.build_inputs_with_special_tokens(token_ids_0, token_ids_1))
        return [0] * first + [0 if self._between else 1] * (both - first)

    def get_special_tokens_mask(
        self,
        token_ids_0: Ids,
        token_ids_1: Ids | None = None,
        already_has_special_tokens: bool = False,
    ) -> Ids:
        """1 where a special token is, or will be once they are added."""
        if already_has_special_tokens:
            if token_ids_1 is not None:
                raise InputError("give ids that have their special tokens as one list")
            special = set(self.all_special_ids)
            return [int(index in special) for index in token_ids_0]
        pair = None if token_ids_1 is None else [-1] * len(token_ids_1)
        built = self.build_inputs_with_special_tokens([-1] * len(token_ids_0), pair)
        return [int(index != -1) for index in built]

    @property
    def _ends(self) -> tuple[Ids, Ids]:
        if self.style is None:
            return [], []
        return [self.cls_token_id], [self.sep_token_id]

    @property
    def _between(self) -> Ids:
        return [self.sep_token_id] if self.style and self.style.double_sep else []


def from_ids(
    tokenizer: Surroundings,
    ids: Ids,
    pair: Ids | None,
    options: CallOptions,
) -> dict[str, Any]:
    """One input from the ids of one text or two, not padded yet."""
    around = tokenizer.num_special_tokens_to_add(pair is not None)
    length = len(ids) + len(pair or ()) + (around if options.add_special_tokens else 0)
    over: Ids = []
    if options.truncation != "do_not_truncate" and options.max_length:
        remove = length - options.max_length
        ids, pair, over = cut(ids, pair, remove, options, tokenizer.truncation_side)
    row: dict[str, Any] = {}
    if options.return_overflowing_tokens:
        row["overflowing_tokens"] = over
        row["num_truncated_tokens"] = length - (options.max_length or length)
    if options.add_special_tokens:
        row["input_ids"] = tokenizer.build_inputs_with_special_tokens(ids, pair)
        types = tokenizer.create_token_type_ids_from_sequences(ids, pair)
        special = tokenizer.get_special_tokens_mask(ids, pair)
    else:
        row["input_ids"] = ids + (pair or [])
        types = [0] * len(row["input_ids"])
        special = types
    names = tokenizer.model_input_names
    if _asked(options.return_token_type_ids, "token_type_ids" in names):
        row["token_type_ids"] = types
    if options.return_special_tokens_mask:
        row["special_tokens_mask"] = special
    if _asked(options.return_attention_mask, "attention_mask" in names):
        row["attention_mask"] = [1] * len(row["input_ids"])
    if options.return_length:
        row["length"] = len(row["input_ids"])
    return row


def cut(
    ids: Ids, pair: Ids | None, remove: int, options: CallOptions, side: str
) -> tuple[Ids, Ids | None, Ids]:
    """The two texts without ``remove`` tokens, and what was cut with ``stride`` tokens before it.

    A text that is too short for its strategy is left as it is.
    """
    if remove <= 0:
        return ids, pair, []
    strategy = options.truncation
    if strategy == "longest_first" and pair is not None:
        more = min(abs(len(pair) - len(ids)), remove)
        rest = remove - more
        # The longer one first, then both in turn.
        if len(ids) > len(pair):
            first, second = more + rest // 2, rest - rest // 2
        else:
            first, second = rest // 2, more + rest - rest // 2
        return _keep(ids, first, side), _keep(pair, second, side), []
    chosen = pair if strategy == "only_second" else ids
    if chosen is None or len(chosen) <= remove:
        return ids, pair, []
    window = min(len(chosen), options.stride + remove)
    over = chosen[:window] if side == "left" else chosen[-window:]
    kept = _keep(chosen, remove, side)
    return (ids, kept, over) if strategy == "only_second" else (kept, pair, over)


def _keep(ids: Ids, remove: int, side: str) -> Ids:
    return ids[remove:] if side == "left" else ids[: max(len(ids) - remove, 0)]


def _asked(value: bool | None, default: bool) -> bool:
    return default if value is None else value
