"""From text to ids: the calls of a tokenizer, and what stands around a text."""

import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ownbert.errors import InputError
from ownbert.hf.tokenizers.encoding import BatchEncoding
from ownbert.hf.tokenizers.ids import Ids, Surroundings, from_ids
from ownbert.hf.tokenizers.inputs import INPUTS, holds_ids, is_text, why_refused
from ownbert.hf.tokenizers.options import CallOptions
from ownbert.hf.tokenizers.padding import pad_batch
from ownbert.text.bert import keep_whole
from ownbert.text.files import kind_of, never_split_of
from ownbert.text.styles import ROBERTA
from ownbert.text.subword import spaced_words

if TYPE_CHECKING:
    import tokenizers


class Calls(Surroundings):
    """Encoding with a backend ``_tokenizer``; what its rules are is the subclass's matter."""

    def say_once(self, what: str) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # The copy may run Python code and cannot be pickled; it is made anew.
        return {**self.__dict__, "_copy": None}

    @property
    def never_split(self) -> tuple[str, ...]:
        """Words that are kept whole and are not lower-cased, as in the slow BertTokenizer."""
        usable = kind_of(self._tokenizer) == "wordpiece"
        basic = self.init_kwargs.get("do_basic_tokenize", True)
        return never_split_of(self.init_kwargs) if usable and basic else ()

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        *positional: Any,
        **options: Any,
    ) -> BatchEncoding:
        """Encode one text or many, each alone or with a second one; see ``CallOptions``.

        The ids of ``text_target`` become ``labels``, or the result where there is no ``text``.
        """
        found = CallOptions.of(positional, options)
        if text is None and text_target is None:
            raise InputError("the tokenizer needs text or text_target")
        if text is None:
            return self._one_or_many(text_target, text_pair_target, found)
        encoded = self._one_or_many(text, text_pair, found)
        if text_target is not None:
            labels = self._one_or_many(text_target, text_pair_target, found)
            encoded["labels"] = labels["input_ids"]
        return encoded

    def _one_or_many(self, text: Any, pair: Any, options: CallOptions) -> BatchEncoding:
        if not is_text(text) or not (pair is None or is_text(pair)):
            raise InputError(INPUTS)
        words = options.is_split_into_words
        many = isinstance(text, list | tuple)
        if many and words:
            many = bool(text) and isinstance(text[0], list | tuple)
        if not many:
            return self._encode_one(text, pair, options)
        if pair is None:
            return self._encode_many(text, options)
        if isinstance(pair, str) or len(pair) != len(text):
            raise InputError(
                f"{len(text)} texts need as many second texts, not "
                + ("one string" if isinstance(pair, str) else str(len(pair)))
            )
        return self._encode_many(list(zip(text, pair, strict=True)), options)

    def encode_plus(
        self, text: Any, text_pair: Any = None, *positional: Any, **options: Any
    ) -> BatchEncoding:
        """Encode one text or pair: strings, tokens of the vocabulary, ids, or words."""
        return self._encode_one(text, text_pair, CallOptions.of(positional, options))

    def encode(self, text: Any, text_pair: Any = None, *positional: Any, **options: Any) -> Any:
        """The ids of one text or pair."""
        return self.encode_plus(text, text_pair, *positional, **options)["input_ids"]

    def batch_encode_plus(
        self, batch_text_or_text_pairs: Any, *positional: Any, **options: Any
    ) -> BatchEncoding:
        """Encode many: a list of what ``encode_plus`` takes, or of pairs of it."""
        if not isinstance(batch_text_or_text_pairs, list | tuple):
            raise InputError("batch_encode_plus needs a list of texts or of pairs")
        return self._encode_many(batch_text_or_text_pairs, CallOptions.of(positional, options))

    def tokenize(
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, **options: Any
    ) -> list[str]:
        """The tokens of a text, special ones left out."""
        encoded = self.encode_plus(text, pair, add_special_tokens, **options)
        tokens = encoded.tokens()
        if not self.never_split or not isinstance(text, str):
            return tokens
        # One that is in no vocabulary has the id of the unknown token, but shows as itself.
        sources = (text, pair or "")
        places = zip(tokens, encoded.sequence_ids(), encoded[0].offsets, strict=True)
        return [
            self._whole_word(sources[which][start:end], token)
            if token == self.unk_token and which is not None
            else token
            for token, which, (start, end) in places
        ]

    def _whole_word(self, source: str, token: str) -> str:
        normalizer = self._tokenizer.normalizer
        lowered = source.lower() if getattr(normalizer, "lowercase", False) else source
        for form in (unicodedata.normalize("NFC", lowered), normalizer.normalize_str(source)):
            if form in self.never_split:
                return form
        return token

    def _encode_one(self, text: Any, pair: Any, options: CallOptions) -> BatchEncoding:
        if not options.is_split_into_words and isinstance(text, list | tuple):
            return self._encode_ids([(text, pair)], options, one=True)
        encoded = self._encode_texts([(text, pair) if pair else text], options)
        if options.return_tensors is None and not options.return_overflowing_tokens:
            data = {
                key: value[0] if value and isinstance(value[0], list) else value
                for key, value in encoded.items()
            }
            return BatchEncoding(data, encoded.encodings)
        return encoded

    def _encode_many(self, batch: Any, options: CallOptions) -> BatchEncoding:
        if not options.is_split_into_words and batch and holds_ids(batch[0]):
            pairs = [item if isinstance(item[0], list | tuple) else (item, None) for item in batch]
            return self._encode_ids(pairs, options, one=False)
        return self._encode_texts(batch, options)

    def _encode_texts(self, batch: Any, options: CallOptions) -> BatchEncoding:
        options = options.resolved(self)
        encoder = self._ready(options)
        try:
            found = encoder.encode_batch(
                list(batch),
                add_special_tokens=options.add_special_tokens,
                is_pretokenized=options.is_split_into_words,
            )
        except TypeError as error:
            raise InputError(why_refused(batch)) from error
        except BaseException as error:
            # The library stops with a panic, no Exception, where a stride is too long for what a
            # pair leaves of a text, and with a plain Exception where a text is too short to cut.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise InputError(f"the text cannot be encoded so: {error}") from None
            raise
        return self._collected(found, options)

    def _encoder(self, *, words: bool) -> "tokenizers.Tokenizer":
        """The backend, or its copy for words that are never split or that stand alone."""
        spaced = words and self.style is ROBERTA and not self.add_prefix_space
        if not (spaced or self.never_split):
            return self._tokenizer
        if self._copy is None:
            # The slow RobertaTokenizer puts a blank before each of the words that it is given.
            self._copy = (
                spaced_words(self._tokenizer)
                if spaced
                else keep_whole(self._tokenizer, self.never_split)
            )
        return self._copy

    def _ready(self, options: CallOptions) -> "tokenizers.Tokenizer":
        """The backend, set to cut and pad as asked; ``InputError`` where it cannot."""
        encoder = self._encoder(words=options.is_split_into_words)
        split = options.split_special_tokens
        encoder.encode_special_tokens = self.split_special_tokens if split is None else split
        if options.truncation == "do_not_truncate":
            encoder.no_truncation()
        else:
            self._set_truncation(encoder, options)
        if options.padding == "do_not_pad":
            encoder.no_padding()
        else:
            encoder.enable_padding(
                length=options.max_length if options.padding == "max_length" else None,
                direction=options.padding_side or self.padding_side,
                pad_id=self.pad_token_id,
                pad_token=self.pad_token,
                pad_type_id=self.pad_token_type_id,
                pad_to_multiple_of=options.pad_to_multiple_of,
            )
        return encoder

    def _set_truncation(self, encoder: "tokenizers.Tokenizer", options: CallOptions) -> None:
        try:
            encoder.enable_truncation(
                max_length=options.max_length,
                stride=options.stride,
                strategy=options.truncation,
                direction=self.truncation_side,
            )
        except Exception as error:  # the library raises nothing narrower
            encoder.no_truncation()
            raise InputError(f"truncation does not work: {error}") from error

    def _collected(self, found: "list[tokenizers.Encoding]", options: CallOptions) -> BatchEncoding:
        """Encodings as columns; those that overflowed follow the one that they belong to."""
        over = options.return_overflowing_tokens
        groups = [[encoding, *encoding.overflowing] if over else [encoding] for encoding in found]
        encodings = [encoding for group in groups for encoding in group]
        columns: dict[str, Any] = {"input_ids": [encoding.ids for encoding in encodings]}
        names, types = self.model_input_names, options.return_token_type_ids
        mask = options.return_attention_mask
        if types or (types is None and "token_type_ids" in names):
            columns["token_type_ids"] = [encoding.type_ids for encoding in encodings]
        if mask or (mask is None and "attention_mask" in names):
            columns["attention_mask"] = [encoding.attention_mask for encoding in encodings]
        if options.return_special_tokens_mask:
            columns["special_tokens_mask"] = [e.special_tokens_mask for e in encodings]
        if options.return_offsets_mapping:
            columns["offset_mapping"] = [encoding.offsets for encoding in encodings]
        if options.return_length:
            columns["length"] = [len(encoding.ids) for encoding in encodings]
        if over:
            columns["overflow_to_sample_mapping"] = [
                row for row, group in enumerate(groups) for _ in group
            ]
        self._warn_of_length(max(map(len, columns["input_ids"]), default=0), options)
        return BatchEncoding(columns, encodings, tensor_type=options.return_tensors)

    def _warn_of_length(self, longest: int, options: CallOptions) -> None:
        if options.max_length is None and options.verbose and longest > self.model_max_length > 0:
            self.say_once(
                f"a text has {longest} tokens, the model takes {self.model_max_length}; "
                "truncation=True cuts it"
            )

    # Ids that are there already.

    def prepare_for_model(
        self, ids: Ids, pair_ids: Ids | None = None, *positional: Any, **options: Any
    ) -> BatchEncoding:
        """One input from the ids of one text or two."""
        prepend = options.pop("prepend_batch_axis", False)
        found = CallOptions.of(positional, options).resolved(self)
        return self._from_ids(list(ids), pair_ids, found, prepend)

    def _encode_ids(self, pairs: Any, options: CallOptions, *, one: bool) -> BatchEncoding:
        options = options.resolved(self)
        ids = [(self._ids(a), None if b is None else self._ids(b)) for a, b in pairs]
        if one:
            return self._from_ids(*ids[0], options, prepend=options.return_tensors is not None)
        rows = [from_ids(self, a, b, options) for a, b in ids]
        if options.padding == "do_not_pad":
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            return BatchEncoding(columns, tensor_type=options.return_tensors)
        return pad_batch(self, rows, options)

    def _from_ids(
        self, ids: Ids, pair: Ids | None, options: CallOptions, prepend: bool
    ) -> BatchEncoding:
        row = from_ids(self, ids, pair, options)
        if options.padding != "do_not_pad":
            bare = replace(options, return_tensors=None)
            row = dict(pad_batch(self, row, bare))
        return BatchEncoding(row, None, options.return_tensors, prepend)

    def _ids(self, text: Any) -> Ids:
        """Ids of a string, of tokens of the vocabulary, or of ids."""
        if isinstance(text, str):
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self.convert_tokens_to_ids(t) if isinstance(t, str) else int(t) for t in text]
