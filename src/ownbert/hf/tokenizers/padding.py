"""Encodings that are there already, padded."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ownbert.errors import InputError
from ownbert.hf.tokenizers.encoding import BatchEncoding
from ownbert.hf.tokenizers.options import CallOptions
from ownbert.hf.tokenizers.special import plain

if TYPE_CHECKING:
    from ownbert.hf.tokenizers.vocabulary import Vocabulary


def pad_batch(
    tokenizer: "Vocabulary",
    inputs: Any,
    options: CallOptions,
) -> BatchEncoding:
    """Pad a mapping of one sequence or of many, or a list of mappings, to a ``BatchEncoding``."""
    if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], Mapping):
        inputs = {key: [example[key] for example in inputs] for key in inputs[0]}
    main = tokenizer.model_input_names[0]
    if not isinstance(inputs, Mapping) or main not in inputs:
        raise InputError(f"pad needs {main}: a mapping that has it, or a list of such mappings")
    tensors = options.return_tensors or _tensors_of(inputs[main])
    columns: dict[str, Any] = {key: plain(value) for key, value in inputs.items()}
    ids = columns[main]
    if len(ids) == 0:
        if options.return_attention_mask:
            columns["attention_mask"] = []
        return BatchEncoding(columns)
    if not isinstance(ids[0], list):
        return BatchEncoding(pad_one(tokenizer, columns, options), tensor_type=tensors)
    if any(not isinstance(v, list) or len(v) != len(ids) for v in columns.values()):
        raise InputError(f"pad: not every value has the {len(ids)} rows of {main}")
    if options.padding == "longest":
        options = replace(options, padding="max_length", max_length=max(map(len, ids)))
    rows = [
        pad_one(tokenizer, {key: value[row] for key, value in columns.items()}, options)
        for row in range(len(ids))
    ]
    batch = {key: [row[key] for row in rows] for key in rows[0]}
    return BatchEncoding(batch, tensor_type=tensors)


def pad_one(tokenizer: "Vocabulary", row: dict[str, Any], options: CallOptions) -> dict[str, Any]:
    """Pad ids, mask and types of one sequence; what else is there stays."""
    main = tokenizer.model_input_names[0]
    length = len(row[main])
    wanted = length if options.padding == "longest" else options.max_length
    multiple = options.pad_to_multiple_of
    if wanted is not None and multiple:
        wanted = -(-wanted // multiple) * multiple
    masked = options.return_attention_mask
    if masked is None:
        masked = "attention_mask" in tokenizer.model_input_names
    row = dict(row)
    if masked and "attention_mask" not in row:
        row["attention_mask"] = [1] * length
    missing = 0 if options.padding == "do_not_pad" or wanted is None else wanted - length
    if missing <= 0:
        return row
    fill = {main: tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    fill |= {"special_tokens_mask": 1} | ({"attention_mask": 0} if masked else {})
    left = (options.padding_side or tokenizer.padding_side) == "left"
    for key, value in fill.items():
        if key in row:
            more = [value] * missing
            row[key] = more + row[key] if left else row[key] + more
    return row


def _tensors_of(ids: Any) -> str | None:
    """``pt`` or ``np`` if the ids are of this kind, or lists of them."""
    first = ids[0] if isinstance(ids, list | tuple) and len(ids) else ids
    kind = type(first).__module__.split(".")[0]
    return {"torch": "pt", "numpy": "np"}.get(kind)
