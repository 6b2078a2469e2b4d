"""Initialisation from a model with another vocabulary: matching tokens, copying weights.

V' is the size of the old vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ownbert.batches.masking import continuing_tokens
from ownbert.batches.word_features import Features
from ownbert.checkpoint import CONFIG, FEATURES, copy_weights, load_tokenizer
from ownbert.checkpoint.copying import first_of, require_blocks
from ownbert.checkpoint.description import Description, describe
from ownbert.checkpoint.model_files import read_config
from ownbert.checkpoint.weights import read_weights
from ownbert.config.encoder import EncoderConfig
from ownbert.corpus.store import Store
from ownbert.exceptions import InputError, percent
from ownbert.files.text_files import open_text
from ownbert.hub import model_folder
from ownbert.language.messages import Message, join
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
from ownbert.nn.variants.feature_embeddings import WordFeatures
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.text.bert_rules import CONTINUATION
from ownbert.text.tokenizer import Tokenizer

# How tokens of the new vocabulary can be matched, with descriptions for reports.
MATCH_KINDS = {
    "special": "special",
    "name": "by name",
    "pieces": "as the mean of pieces",
    "rank": "by rank",
    "new": "new",
}
# A vocabulary is anonymised if at least this share of its tokens are integers.
_INTEGER_SHARE = 0.5
# Tensors that depend on the vocabulary: matched token by token, or computed from the corpus.
_WORDS, _BIAS = "encoder.embeddings.word.weight", "heads.mlm.decoder.bias"
# The tables of word features, matched tag by tag.
_TABLES = ".features.tables."
# Digits of a count; more would overflow in float64.
_MOST_DIGITS = 18
# Heads that pretraining and checkpoints may have in common.
_HEADS = ("mlm", "nsp")
# Model types of BERT; the second has positions that Transformers does not support
# (families.mapping.family.OWN).
BERT_TYPES = ("bert", "ownbert-bert")

Ids = Sequence[int]


@dataclass(frozen=True)
class TokenMatch:
    """The matches of all tokens of a vocabulary.

    Args:
        kinds: (V) kind of match of each token, one of ``MATCH_KINDS``.
        ids: (V) for each token the old tokens whose mean vector initialises it; empty for new
            tokens.
        unnamed: whether some tokens are anonymised ids without a ranking.
    """

    kinds: list[str]
    ids: list[Ids]
    unnamed: bool


def match_vocabulary(
    tokenizer: Tokenizer,
    old: Tokenizer,
    counts: np.ndarray,
    ranking: Mapping[str, int] | None = None,
) -> TokenMatch:
    """Match each token of ``tokenizer`` with tokens of the vocabulary of ``old``.

    Special tokens are matched by role, and are new if the old vocabulary lacks the role. Others are
    matched by name: with the same token, or with the old tokenizer's encoding of the text (one or
    several tokens). Anonymised tokens are matched by rank: the n-th most frequent by ``counts`` (V)
    with the n-th most frequent in ``ranking``; a token whose rank belongs to a word that the old
    vocabulary cannot encode is new.

    Tokens are anonymised if most tokens of space-separated text are integers (unless those of the
    old vocabulary are, too: then they are names); with a ranking, all tokens of other vocabularies.
    """
    size = tokenizer.vocab_size
    kinds = ["new"] * size
    ids: list[Ids] = [()] * size
    special, old_special = _by_role(tokenizer), _by_role(old)
    for role in special.keys() & old_special.keys():
        kinds[special[role]], ids[special[role]] = "special", (old_special[role],)
    ordinary = [index for index in range(size) if index not in special.values()]
    # Tokens whose names carry no meaning.
    anonymous = _numbers(tokenizer, ordinary)
    if ranking is not None:
        anonymous = anonymous or set(ordinary)
    elif _numbers(old, [i for i in range(old.vocab_size) if i not in old.special_ids]):
        anonymous = set()
    named = [index for index in ordinary if index not in anonymous]
    for index, old_ids in _by_name(tokenizer, old, named).items():
        kinds[index] = "name" if len(old_ids) == 1 else "pieces"
        ids[index] = old_ids
    if ranking is not None:
        taken = {tuple(ids[index]) for index in named}
        ranks = [some for some in _ranked(old, ranking) if not some or some not in taken]
        seen = sorted((i for i in anonymous if counts[i] > 0), key=lambda i: (-counts[i], i))
        for index, old_ids in zip(seen, ranks, strict=False):
            if old_ids:
                kinds[index], ids[index] = "rank", old_ids
    return TokenMatch(kinds, ids, bool(anonymous) and ranking is None)


def _by_role(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of special tokens by role; T5 has fewer, and its end-of-text token is used as the
    separator."""
    style = tokenizer.style
    names = ("sep_token" if name == style.end else name for name in style.needed)
    return dict(zip(names, tokenizer.special_ids, strict=True))


def read_counts(path: str | Path) -> dict[str, int]:
    """Read token frequencies from a text file, plain or gzip: a token and a count in each line,
    separated by a tab or spaces. Counts of repeated tokens are added."""
    counts: dict[str, int] = {}
    for number, line in open_text(path):
        if not line.strip():
            continue
        parts = line.split("\t") if "\t" in line else line.split()
        token, count = parts[0].strip(), parts[-1].strip()
        is_count = count.isascii() and count.isdecimal() and len(count) <= _MOST_DIGITS
        if len(parts) != 2 or not token or not is_count:
            raise InputError(
                "{path}, line {number}: {line!r} is not a token and a count; write them as "
                "token, tab, integer of at most {most_digits} digits",
                path,
                number,
                line[:60],
                _MOST_DIGITS,
            )
        counts[token] = counts.get(token, 0) + int(count)
    if not counts:
        raise InputError("{path} contains no counts; each line must have a token and a count", path)
    return counts


def _numbers(tokenizer: Tokenizer, ordinary: Ids) -> set[int]:
    """The integer tokens, if most tokens of a space-separated vocabulary are integers; else
    none."""
    tokens = tokenizer.vocabulary()
    integers = {i for i in ordinary if tokens[i].isascii() and tokens[i].isdecimal()}
    anonymised = tokenizer.kind == "blank" and len(integers) >= _INTEGER_SHARE * len(ordinary)
    return integers if anonymised else set()


def _by_name(tokenizer: Tokenizer, old: Tokenizer, indices: Ids) -> dict[int, Ids]:
    """The old tokens with the same text, by new id, where there are any."""
    vocabulary, inside = tokenizer.vocabulary(), continuing_tokens(tokenizer)
    matches: dict[int, Ids] = {}
    words: dict[int, str] = {}
    for index in indices:
        token = vocabulary[index]
        same = old.id_of(token) if tokenizer.kind == old.kind else None
        if same is not None and same not in old.special_ids:
            matches[index] = (same,)
            continue
        text = _text(tokenizer, index, token)
        if not inside[index]:
            words[index] = text
        elif old.kind == "wordpiece" and (pieces := _split_continuation(text, old)):
            matches[index] = pieces
    encoded = zip(words, _encode_words(old, list(words.values())), strict=True)
    return matches | {index: ids for index, ids in encoded if ids}


def _text(tokenizer: Tokenizer, index: int, token: str) -> str:
    """The text of a token without the markers of its tokenizer."""
    if tokenizer.kind == "blank":
        return token
    if tokenizer.kind == "wordpiece":
        return token.removeprefix(_prefix(tokenizer))
    return tokenizer.decode([index]).strip()


def _prefix(tokenizer: Tokenizer) -> str:
    return getattr(tokenizer.backend.model, "continuing_subword_prefix", CONTINUATION)


def _encode_words(old: Tokenizer, words: Sequence[str]) -> list[Ids]:
    """The tokens of each word; empty if the old vocabulary cannot encode all of it."""
    blank = " " if old.kind == "bpe" else ""
    encoded = old.encode_batch([blank + word for word in words])
    special = set(old.special_ids)
    return [() if special & set(ids) else tuple(ids) for ids in encoded]


def _split_continuation(text: str, old: Tokenizer) -> Ids:
    """The WordPiece continuations of a text inside a word, greedily from the left; empty if a part
    is not in the vocabulary."""
    pieces, start, prefix = [], 0, _prefix(old)
    while start < len(text):
        ends = range(len(text), start, -1)
        candidates = ((end, old.id_of(prefix + text[start:end])) for end in ends)
        start, piece = next(((end, i) for end, i in candidates if i is not None), (len(text), None))
        if piece is None:
            return ()
        pieces.append(piece)
    return tuple(pieces)


def _ranked(old: Tokenizer, ranking: Mapping[str, int]) -> list[Ids]:
    """The old tokens of each word in a ranking, most frequent first; special tokens have no
    rank."""
    special = set(old.special_ids)
    words = [w for w in sorted(ranking, key=lambda w: -ranking[w]) if old.id_of(w) not in special]
    return [
        encoded if same is None else (same,)
        for same, encoded in zip(map(old.id_of, words), _encode_words(old, words), strict=True)
    ]


@dataclass(frozen=True)
class AlignmentReport:
    """What was copied from the checkpoint in ``folder``: the number of tokens of each of
    ``MATCH_KINDS``, their shares of the corpus, names of copied, newly initialised and unused
    tensors, and advice for a better match, if any."""

    folder: str
    tokens: Mapping[str, int]
    shares: Mapping[str, float]
    copied: tuple[str, ...]
    new: tuple[str, ...]
    unused: tuple[str, ...]
    hint: str = ""

    def __str__(self) -> str:
        parts = (name.split(".") for name in self.new)
        head = "the {name} head"
        new = dict.fromkeys(
            Message(head, rest[0]) if k == "heads" else f"the {k}" for k, *rest in parts
        )
        tokens = [
            Message(
                "{count:,} {name!t} ({share} of the corpus)",
                *(self.tokens[kind], name, percent(self.shares[kind])),
            )
            for kind, name in MATCH_KINDS.items()
            if self.tokens[kind]
        ]
        lines = [
            Message("started from {folder}: {count} tensors copied", self.folder, len(self.copied))
            + (Message("; new: {parts}", list(new)) if new else "")
            + (Message("; not used: {parts}", list(self.unused)) if self.unused else ""),
            Message("tokens: {tokens}", join(tokens)),
        ]
        return join(filter(None, [*lines, self.hint]), "\n")


def position_limit(folder: str | Path) -> int | None:
    """Maximum positions of a run initialised from the BERT in ``folder``; None: unlimited."""
    config = _describe_bert(model_folder(folder)).config
    return config.longest if config.positions.limited else None


def init_config(folder: str | Path, tokenizer: Tokenizer, recipe: PretrainRecipe) -> EncoderConfig:
    """The structure of the BERT in ``folder`` with the new vocabulary and the recipe's dropout. The
    position table keeps its length."""
    path = model_folder(folder)
    config = _describe_bert(path).config
    longest = recipe.longest
    if config.positions.limited and longest > config.longest:
        raise InputError(
            "data.max_length is {longest}, but {path} has max_position_embeddings "
            "{max_position_embeddings}; use at most that, or start from another model",
            longest,
            path / CONFIG,
            config.max_position_embeddings,
        )
    pairs = next((task.pairs for task, _ in recipe.parts if task.pairs), None)
    if pairs and config.type_vocab_size < 2:
        raise InputError(
            "task.objectives has {pairs}, but {path} has type_vocab_size {type_vocab_size}; "
            "pairs need 2: use only mlm",
            pairs,
            path / CONFIG,
            config.type_vocab_size,
        )
    objectives = recipe.objectives
    return replace(
        config,
        vocab_size=tokenizer.vocab_size,
        pad_token_id=tokenizer.pad_id,
        max_position_embeddings=max(longest, config.max_position_embeddings),
        hidden_dropout_prob=recipe.model.dropout,
        attention_probs_dropout_prob=recipe.model.dropout,
        is_decoder=objectives == {"clm"},
    )


@torch.no_grad()
def copy_checkpoint(
    model: Model,
    folder: str | Path,
    tokenizer: Tokenizer,
    store: Store,
    *,
    counts_file: str | Path | None = None,
    seed: int = 0,
) -> AlignmentReport:
    """Copy the weights of a checkpoint into ``model``, whose structure is that of ``init_config``.

    Word embeddings are copied as matched by ``match_vocabulary``; those of new tokens are sampled
    from a normal distribution with the mean and standard deviation of the copied ones. The bias of
    the MLM decoder depends on the corpus and is left to the caller. Word features with equal
    columns and sizes are copied tag by tag.
    """
    path = model_folder(folder)
    ranking = None if counts_file is None else read_counts(counts_file)
    description = _describe_bert(path)
    old, new, unused = _load_old_model(description, path, model, store.tags)
    old_parameters, parameters = dict(old.named_parameters()), dict(model.named_parameters())
    copied = [
        n for n in parameters if n in old_parameters and n not in (_WORDS, _BIAS) and n not in new
    ]
    for name in copied:
        if _TABLES not in name:
            parameters[name].copy_(old_parameters[name])
    if any(_TABLES in name for name in copied):
        head, old_head = (m.get_submodule("heads.mlm.features") for m in (model, old))
        assert isinstance(head, WordFeatures)
        assert isinstance(old_head, WordFeatures)
        head.start_from(old_head, description.values[FEATURES], store.tags)
    old_tokenizer = load_tokenizer(description)
    match = match_vocabulary(tokenizer, old_tokenizer, store.counts, ranking)
    parameters[_WORDS].copy_(_word_vectors(old_parameters[_WORDS], match, seed))
    initialised = [n for n in parameters if n not in copied and n not in (_WORDS, _BIAS)]
    kinds, total = np.array(match.kinds), max(1, int(store.counts.sum()))
    hint = ""
    if match.unnamed:
        hint = (
            "the tokens are numbers, which cannot be matched by name: with the frequencies of "
            "words in similar text (--init-counts) they are matched by rank"
        )
    return AlignmentReport(
        str(folder),
        {kind: int((kinds == kind).sum()) for kind in MATCH_KINDS},
        {kind: float(store.counts[kinds == kind].sum()) / total for kind in MATCH_KINDS},
        tuple(copied),
        tuple(initialised),
        unused,
        hint,
    )


def _describe_bert(path: Path) -> Description:
    values = read_config(path / CONFIG)
    model_type = str(values.get("model_type"))
    if model_type not in BERT_TYPES:
        raise InputError(
            "{path}: model_type is {model_type!r}; pretraining can start from 'bert' only (BERT "
            "itself, and MiniLM, SciBERT and others of its structure)",
            path / CONFIG,
            model_type,
        )
    description = describe(path, values=values, any_architecture=True)
    if description.config.add_cross_attention:
        raise InputError(
            "{path}: add_cross_attention is true, but pretraining has nothing to attend to: use "
            "a model without it",
            path / CONFIG,
        )
    return description


def _load_old_model(
    description: Description, path: Path, model: Model, features: Features
) -> tuple[Model, set[str], tuple[str, ...]]:
    """The checkpoint as a model with the heads shared with ``model``; names of parameters missing
    in the checkpoint; and names of tensors in the checkpoint that the model lacks."""
    family, config = description.family, description.config
    weight_map = family.weight_map
    specs = [family.spec_of(kind, description.values) for kind in model.specs if kind in _HEADS]
    if features and [*features] == [*(description.values.get(FEATURES) or ())]:
        with_features = {spec.kind: spec for spec in description.specs if spec.features}
        if with_features["mlm"].feature_size == model.specs["mlm"].feature_size:
            specs = [with_features.get(spec.kind, spec) for spec in specs]
    tensors, weights = read_weights(path)
    require_blocks(tensors, weight_map, weights, config)
    with shapes_alone():
        old = Model(config, specs, pooler=model.pooler is not None)
    with torch.random.fork_rng(devices=[]):
        report = copy_weights(old, tensors, weight_map, description=description, lenient=True)
    if report.problems:
        problems = "; ".join(first_of(report.problems))
        raise InputError(
            "{weights} does not match its {config}: {problems}", weights, CONFIG, problems
        )
    names = {n: weight_map.their_name(n, config) for n, _ in old.named_parameters()}
    return old, {n for n, theirs in names.items() if theirs in report.new}, tuple(report.unused)


def _word_vectors(old: Tensor, match: TokenMatch, seed: int) -> Tensor:
    """The word embeddings (V, D) computed from the checkpoint's (V', D): the mean of each token's
    old vectors."""
    flat = torch.tensor([i for old_ids in match.ids for i in old_ids], dtype=torch.int64)
    starts = torch.tensor([0, *accumulate(map(len, match.ids))][:-1], dtype=torch.int64)
    vectors = embedding_bag(flat, old.float(), starts, mode="mean")
    matched = torch.tensor([kind not in ("special", "new") for kind in match.kinds])
    sample = vectors[matched] if int(matched.sum()) > 1 else old
    new = torch.tensor([kind == "new" for kind in match.kinds])
    noise = torch.randn(int(new.sum()), old.shape[1], generator=torch.Generator().manual_seed(seed))
    vectors[new] = sample.mean(0) + sample.std(0) * noise
    return vectors
