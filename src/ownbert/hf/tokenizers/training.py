"""Learns a new vocabulary with the rules of an existing tokenizer."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ownbert.hf.tokenizers.special import text_of

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import AddedToken

_TRAINERS = {
    "WordPiece": "WordPieceTrainer",
    "BPE": "BpeTrainer",
    "Unigram": "UnigramTrainer",
    "WordLevel": "WordLevelTrainer",
}


def learnt_anew(
    backend: "tokenizers.Tokenizer",
    texts: Iterable[str] | Iterable[Sequence[str]],
    size: int,
    length: int | None,
    new_special: "Sequence[str | AddedToken]",
    names: Mapping[str, str],
    options: dict[str, Any],
) -> "tokenizers.Tokenizer":
    """Train a tokenizer with the same rules; its vocabulary begins with the special tokens.

    For the arguments see ``PreTrainedTokenizerFast.train_new_from_iterator``.
    """
    from tokenizers import AddedToken, Tokenizer, pre_tokenizers, trainers

    rules = json.loads(backend.to_str())
    model, kind = rules["model"], rules["model"]["type"]
    added, processor = rules.pop("added_tokens"), rules.pop("post_processor")
    unknown = model.get("unk_token")
    if kind == "Unigram":
        unknown = model["vocab"][model["unk_id"] or 0][0]
        model |= {"unk_id": 0, "vocab": [[names.get(unknown, unknown), 0.0]]}
        options.setdefault("unk_token", names.get(unknown, unknown))
    else:
        model |= {"vocab": {}} | ({"merges": []} if kind == "BPE" else {})
        if unknown is not None:
            model["unk_token"] = names.get(unknown, unknown)
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name) is not None:
            options.setdefault(name, model[name])
    if '"ByteLevel"' in json.dumps(rules["pre_tokenizer"]):
        options.setdefault("initial_alphabet", pre_tokenizers.ByteLevel.alphabet())
    special: list[Any] = []
    for token in added:
        keys = {key: value for key, value in token.items() if key not in ("id", "special")}
        if token["special"] or kind == "Unigram":
            text = names.get(token["content"], token["content"])
            special.append(AddedToken(**{**keys, "content": text}))
    trainer = getattr(trainers, _TRAINERS[kind])(
        vocab_size=size, special_tokens=[*special, *new_special], **options
    )
    learnt = Tokenizer.from_str(json.dumps(rules))
    learnt.train_from_iterator(texts, trainer=trainer, length=length)
    if processor is None:
        return learnt
    rules = json.loads(learnt.to_str())
    rules["post_processor"] = _with_ids(processor, learnt, names)
    return Tokenizer.from_str(json.dumps(rules))


def _with_ids(
    processor: dict[str, Any], learnt: "tokenizers.Tokenizer", names: Mapping[str, str]
) -> dict[str, Any]:
    """The rule that adds special tokens around texts, with their new texts and ids."""
    for token in processor.get("special_tokens", {}).values():
        token["tokens"] = [names.get(text, text) for text in token["tokens"]]
        token["ids"] = [learnt.token_to_id(text) for text in token["tokens"]]
    for name in ("cls", "sep"):
        if name in processor:
            text = names.get(processor[name][0], processor[name][0])
            processor[name] = [text, learnt.token_to_id(text)]
    return processor


def renamed(token: "str | AddedToken", names: Mapping[str, str]) -> "str | AddedToken":
    """A special token with its new text and unchanged matching rules."""
    from tokenizers import AddedToken

    text = names.get(text_of(token), text_of(token))
    if isinstance(token, str):
        return text
    rules = ("single_word", "lstrip", "rstrip", "normalized")
    return AddedToken(text, **{name: getattr(token, name) for name in rules}, special=True)
