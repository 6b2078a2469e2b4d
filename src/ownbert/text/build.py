"""Builds a backend from a family's own files, for folders without tokenizer.json, and the schemas
of tokenizer_config.json and of other JSON files of a tokenizer.

SentencePiece's .model files are read without its library: they are protocol buffers (``ModelProto``
of google/sentencepiece, ``sentencepiece_model.proto``).
"""

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from ownbert.files.text_files import open_text, refuse_unreadable
from ownbert.protobuf import Reader
from ownbert.text.bert_rules import wordpiece_rules
from ownbert.text.styles import (
    ALBERT,
    BERT,
    CAMEMBERT,
    DEBERTA,
    ROBERTA,
    SPECIAL_NAMES,
    T5,
    XLM_ROBERTA,
    XLNET,
    Style,
    additional_tokens,
)

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import normalizers


SPACE = "▁"
# Penalty for pieces such as "9,", so that "9" and "," are preferred, as in ALBERT's code.
DIGIT_COMMA_PENALTY = 100.0
# First tokens of fairseq's dictionaries, and the number of the model's pieces that they replace.
_FAIRSEQ_FIRST: dict[str, tuple[tuple[tuple[str, float], ...], int]] = {
    XLM_ROBERTA.name: ((("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)), 3),
    CAMEMBERT.name: (
        (
            ("<s>NOTUSED", 0.0),
            ("<pad>", 0.0),
            ("</s>NOTUSED", 0.0),
            ("<unk>", 0.0),
            ("<unk>NOTUSED", -100.0),
        ),
        1,
    ),
}
_FAIRSEQ_UNK = 3
UNIGRAM, BPE = 1, 2
CONTROL, USER_DEFINED = 3, 4
MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}


def bpe_backend(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    add_prefix_space: bool = False,
) -> "tokenizers.Tokenizer":
    """Create a byte-level BPE tokenizer; every byte has a token, so no text is unknown.

    Raises:
        ValueError: a merge refers to a token that is not in the vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    try:
        model = models.BPE(
            vocab=dict(vocabulary),
            merges=list(dict.fromkeys(merges)),
            continuing_subword_prefix="",
            end_of_word_suffix="",
        )
    except Exception as error:  # the library has no narrower exception
        raise ValueError(str(error)) from error
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def with_prefix_space(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Copy a byte-level ``backend`` so that it prepends a space to texts without one."""
    from tokenizers import Tokenizer, pre_tokenizers

    copy = Tokenizer.from_str(backend.to_str())
    if isinstance(copy.pre_tokenizer, pre_tokenizers.ByteLevel):
        copy.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return copy


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary: its score is a log-probability, or for BPE the priority, and its
    kind the type in the protocol buffer, such as ``CONTROL``."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a .model file: pieces in the order of their ids, ``UNIGRAM`` or ``BPE``, and
    the compiled character map of the normaliser, empty if there is none."""

    pieces: tuple[Piece, ...]
    model_type: int
    unk_id: int
    unk_piece: str
    charsmap: bytes


def pieces_backend(
    model: SentencePieceModel,
    style: Style,
    *,
    last: tuple[str, ...] = (),
    do_lower_case: bool = True,
    keep_accents: bool = False,
    split_by_punct: bool = False,
) -> "tokenizers.Tokenizer":
    """Create the tokenizer of a SentencePiece model; tokens in ``last`` are appended to those of
    the file. Lower case applies to ALBERT, XLNet and DeBERTa, accents to ALBERT and XLNet, and the
    separation of punctuation marks to DeBERTa."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pieces, unk_id = _numbered(model, style)
    pieces += [(token, 0.0) for token in last]
    if model.model_type == BPE:
        ids = {text: index for index, (text, _) in enumerate(pieces)}
        merges = _merges(model, dict(pieces))
        backend = Tokenizer(models.BPE(ids, merges, unk_token=model.unk_piece, fuse_unk=True))
    else:
        backend = Tokenizer(models.Unigram(pieces, unk_id=unk_id, byte_fallback=False))
    backend.add_tokens(
        [
            AddedToken(piece.text, normalized=False, special=piece.kind == CONTROL)
            for piece in model.pieces
            if piece.kind in (CONTROL, USER_DEFINED)
        ]
    )
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    backend.pre_tokenizer = words
    backend.normalizer = _normalizer(model, style, do_lower_case, keep_accents)
    if style is DEBERTA:
        marks = [pre_tokenizers.Punctuation(behavior="isolated")] if split_by_punct else []
        backend.pre_tokenizer = pre_tokenizers.Sequence([*marks, words])
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return backend


def _numbered(model: SentencePieceModel, style: Style) -> tuple[list[tuple[str, float]], int]:
    """Text and score of each piece in the order of the ids, and the id of the unknown token."""
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    if style.name in _FAIRSEQ_FIRST:
        first, skip = _FAIRSEQ_FIRST[style.name]
        return [*first, *pieces[skip:], ("<mask>", 0.0)], _FAIRSEQ_UNK
    if style in (ALBERT, XLNET):
        pieces = [
            (text, score - DIGIT_COMMA_PENALTY * (text[-1:] == "," and text[-2:-1].isdigit()))
            for text, score in pieces
        ]
    return pieces, model.unk_id


def _merges(model: SentencePieceModel, scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges implied by the pieces of a BPE model, highest score first."""
    ids = {piece.text: index for index, piece in enumerate(model.pieces)}
    merges = []
    for piece, score in scores.items():
        splits = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        pairs = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(score, pair) for pair in pairs]
    # ``reverse`` preserves the order of equal entries.
    merges.sort(key=lambda entry: (entry[0], len(entry[1][0]), len(entry[1][1])), reverse=True)
    return [pair for _, pair in merges]


def _normalizer(
    model: SentencePieceModel, style: Style, do_lower_case: bool, keep_accents: bool
) -> "normalizers.Normalizer":
    """The rules of the .model file, with the steps that Transformers adds before and after them."""
    from tokenizers import Regex, normalizers

    charsmap = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    lower, space = [normalizers.Lowercase()] if do_lower_case else [], " "
    if style in (ALBERT, XLNET):
        quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        accents = [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
        steps = [*quotes, *accents, *lower, *charsmap]
    elif style is DEBERTA:
        steps = [*lower, normalizers.Strip(), *charsmap]
    else:
        steps, space = [*charsmap, normalizers.Strip(left=False, right=True)], SPACE
    return normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), space)])


def read_model(path: str | os.PathLike[str]) -> SentencePieceModel:
    source = Path(path)
    refuse_unreadable(source)
    try:
        model = _model(source.read_bytes())
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise InputError("{source} is damaged or not a SentencePiece model", source) from error
    if not model.pieces:
        raise InputError("{source} is not a SentencePiece model: it contains no pieces", source)
    if model.model_type not in (UNIGRAM, BPE):
        kind = MODEL_TYPES.get(model.model_type, str(model.model_type))
        raise InputError(
            "{source} is a SentencePiece model of type {kind}, not Unigram or BPE", source, kind
        )
    return model


def _model(data: bytes) -> SentencePieceModel:
    pieces = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in Reader(data).fields():
        if field == 1:
            pieces.append(_piece(_as_bytes(value)))
        elif field == 2:
            trainer |= dict(Reader(_as_bytes(value)).fields())
        elif field == 3:
            normalizer |= dict(Reader(_as_bytes(value)).fields())
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=_as_number(trainer.get(3, UNIGRAM)),
        unk_id=_as_number(trainer.get(40, 0)),
        unk_piece=_as_bytes(trainer.get(45, b"<unk>")).decode("utf-8"),
        charsmap=_as_bytes(normalizer.get(2, b"")),
    )


def _piece(data: bytes) -> Piece:
    values = dict(Reader(data).fields())
    (score,) = struct.unpack("<f", _as_bytes(values.get(2, bytes(4))))
    return Piece(_as_bytes(values.get(1, b"")).decode("utf-8"), score, _as_number(values.get(3, 1)))


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("bytes expected")
    return value


def _as_number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise TypeError("number expected")
    return value - (1 << 64) if value >> 63 else value


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
    """Build the backend of a family, without special tokens and post-processor, from ``files``,
    with the keys of ``style.files``. ``settings`` are arguments of Transformers' constructors;
    unknown ones are ignored."""
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
    """A special token as Transformers registers it if it is given as a plain string: the mask token
    includes the space before it, except in BERT and DeBERTa. ``built`` backends have no
    tokenizer.json."""
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
    """Register special tokens, and before them ``added`` ones, which are never split, in place.
    Tokens in the vocabulary keep their ids; others get new ones. Special tokens given as plain
    strings are skipped if already registered."""
    from tokenizers import AddedToken

    special, tokens = list(special), list(added)
    names = {str(token.content if isinstance(token, AddedToken) else token) for token in special}
    registered = {token.content for token in backend.get_added_tokens_decoder().values()}
    registered |= {token.content for token in tokens}
    for token in tokens:
        token.special = token.special or token.content in names
    for token in special:
        if isinstance(token, AddedToken):
            token.special = True
            tokens.append(token)
        elif token not in registered:
            registered.add(token)
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
    """Read a merges.txt: a version line, then two tokens per line, in the order of priority."""
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
    """Read a vocab.json: ids by token."""
    return read_json(path, object, check=IDS)
