"""Padding and truncation of ids."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ownbert.exceptions import InputError
from ownbert.hf.tokenizers.batch_encoding import BatchEncoding, as_lists
from ownbert.hf.tokenizers.call_options import CallOptions

Ids = list[int]


def truncate(
    ids: Ids, pair: Ids | None, remove: int, *, strategy: str, stride: int, side: str
) -> tuple[Ids, Ids | None, Ids]:
    """Remove tokens from one or two texts.

    A text that is too short for the strategy is returned unchanged.

    Args:
        remove: number of tokens to remove.
        strategy: one of ``TRUNCATIONS``.
        stride: number of remaining tokens to return with the removed ones.
        side: end at which tokens are removed, ``left`` or ``right``.

    Returns:
        Both texts and the removed tokens, with ``stride`` of the remaining ones; with
        ``longest_first`` and a pair these are empty.
    """
    if remove <= 0:
        return ids, pair, []
    if strategy == "longest_first" and pair is not None:
        more = min(abs(len(pair) - len(ids)), remove)
        rest = remove - more
        # The longer one first, then both in turn.
        if len(ids) > len(pair):
            first, second = more + rest // 2, rest - rest // 2
        else:
            first, second = rest // 2, more + rest - rest // 2
        return _shorten(ids, first, side), _shorten(pair, second, side), []
    chosen = pair if strategy == "only_second" else ids
    if chosen is None or len(chosen) <= remove:
        return ids, pair, []
    window = min(len(chosen), stride + remove)
    removed = chosen[:window] if side == "left" else chosen[-window:]
    kept = _shorten(chosen, remove, side)
    return (ids, kept, removed) if strategy == "only_second" else (kept, pair, removed)


def _shorten(ids: Ids, remove: int, side: str) -> Ids:
    return ids[remove:] if side == "left" else ids[: max(len(ids) - remove, 0)]


def pad_batch(inputs: Any, options: CallOptions, tokenizer: Any) -> BatchEncoding:
    """Pad a mapping of one sequence or of many, or a list of mappings.

    Raises:
        InputError: there are no ids, or columns of different lengths.
    """
    if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], Mapping):
        inputs = {key: [example[key] for example in inputs] for key in inputs[0]}
    main = tokenizer.model_input_names[0]
    if not isinstance(inputs, Mapping) or main not in inputs:
        raise InputError(f"pad needs {main}: a mapping that has it, or a list of such mappings")
    tensors = options.return_tensors or _tensor_type(inputs[main])
    columns: dict[str, Any] = {key: as_lists(value) for key, value in inputs.items()}
    ids = columns[main]
    if len(ids) == 0:
        if options.return_attention_mask:
            columns["attention_mask"] = []
        return BatchEncoding(columns)
    if not isinstance(ids[0], list):
        return BatchEncoding(_pad_row(columns, options, tokenizer), tensor_type=tensors)
    if any(not isinstance(v, list) or len(v) != len(ids) for v in columns.values()):
        raise InputError(f"pad: not every value has the {len(ids)} rows of {main}")
    if options.padding == "longest":
        options = replace(options, padding="max_length", max_length=max(map(len, ids)))
    rows = [
        _pad_row({key: value[index] for key, value in columns.items()}, options, tokenizer)
        for index in range(len(ids))
    ]
    return BatchEncoding({key: [row[key] for row in rows] for key in rows[0]}, tensor_type=tensors)


def _pad_row(row: dict[str, Any], options: CallOptions, tokenizer: Any) -> dict[str, Any]:
    """Pad ids, masks and types of one sequence; other values are unchanged."""
    main = tokenizer.model_input_names[0]
    length = len(row[main])
    target = length if options.padding == "longest" else options.max_length
    multiple = options.pad_to_multiple_of
    if target is not None and multiple:
        target = -(-target // multiple) * multiple
    masked = options.returns("attention_mask", tokenizer.model_input_names)
    row = dict(row)
    if masked and "attention_mask" not in row:
        row["attention_mask"] = [1] * length
    missing = 0 if options.padding == "do_not_pad" or target is None else target - length
    if missing <= 0:
        return row
    fill = {main: tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    fill |= {"special_tokens_mask": 1} | ({"attention_mask": 0} if masked else {})
    left = (options.padding_side or tokenizer.padding_side) == "left"
    for key, value in fill.items():
        if key in row:
            padding = [value] * missing
            row[key] = padding + row[key] if left else row[key] + padding
    return row


def _tensor_type(ids: Any) -> str | None:
    """``pt`` or ``np`` if the ids are tensors or arrays, or lists of them."""
    first = ids[0] if isinstance(ids, list | tuple) and len(ids) else ids
    kind = type(first).__module__.split(".")[0]
    return {"torch": "pt", "numpy": "np"}.get(kind)
