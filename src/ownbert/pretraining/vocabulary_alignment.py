"""Starting from a model with another vocabulary. V vocabulary, O old vocabulary, D hidden."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ownbert.checkpoint import CONFIG, copy_weights, load_tokenizer
from ownbert.checkpoint.copying import first_of
from ownbert.checkpoint.description import Description, describe
from ownbert.checkpoint.weights import read_model_json, read_weights
from ownbert.config import EncoderConfig
from ownbert.data.corpus.store import Store
from ownbert.errors import InputError
from ownbert.files import model_folder
from ownbert.nn.model import Model
from ownbert.pretraining.recipe import PretrainRecipe
from ownbert.pretraining.token_matching import WAYS, Ids, Match, match, read_counts
from ownbert.text.tokenizer import Tokenizer

# What belongs to the vocabulary: matched token by token, and counted in the corpus.
_WORDS, _BIAS = "encoder.embeddings.word.weight", "heads.mlm.decoder.bias"
# Heads that pretraining and checkpoints have in common.
_HEADS = ("mlm", "nsp")
# Of BERTs; the second has positions that Transformers does not know (families.family.OWN).
_KINDS = ("bert", "ownbert-bert")
# Position kinds with a table, which a longer sequence would run out of.
_TABLES = ("absolute", "relative_key", "relative_key_query")
_SAID = {
    "special": "special",
    "name": "by name",
    "pieces": "as the mean of pieces",
    "rank": "by rank",
    "new": "new",
}


@dataclass(frozen=True)
class Report:
    """What was copied from ``folder``. tokens, shares: how many of our vocabulary were found in
    each of WAYS, and what share of the corpus they are. copied, new: our tensors; unused: those
    of the checkpoint that had no place. hint: what could be done better, if anything."""

    folder: str
    tokens: Mapping[str, int]
    shares: Mapping[str, float]
    copied: tuple[str, ...]
    new: tuple[str, ...]
    unused: tuple[str, ...]
    hint: str = ""

    def __str__(self) -> str:
        new = ", ".join(dict.fromkeys(_part(name) for name in self.new))
        unused = ", ".join(self.unused)
        words = ", ".join(
            f"{self.tokens[way]:,} {said} ({self.shares[way]:.1%} of the corpus)"
            for way, said in _SAID.items()
            if self.tokens[way]
        )
        lines = [
            f"started from {self.folder}: {len(self.copied)} tensors copied"
            + (f"; new: {new}" if new else "")
            + (f"; not used: {unused}" if unused else ""),
            f"tokens: {words}",
        ]
        return "\n".join([*lines, *([self.hint] if self.hint else [])])


def init_config(folder: str | Path, tokenizer: Tokenizer, recipe: PretrainRecipe) -> EncoderConfig:
    """The structure of a BERT's folder with our vocabulary and the recipe's dropout.

    A table of positions keeps its length. Raises ``InputError`` for another family, for what
    pretraining cannot train, and for sequences longer than that table.
    """
    path = model_folder(folder)
    config = _described(path).config
    longest = max(data.max_length for _, data in recipe.parts)
    if config.position_embedding_type in _TABLES and longest > config.longest:
        raise InputError(
            f"data.max_length is {longest}, but {path / CONFIG} has max_position_embeddings "
            f"{config.max_position_embeddings}; take at most that, or another model to start from"
        )
    pairs = next((task.pairs for task, _ in recipe.parts if task.pairs), None)
    if pairs and config.type_vocab_size < 2:
        raise InputError(
            f"task.objectives has {pairs}, but {path / CONFIG} has type_vocab_size "
            f"{config.type_vocab_size}; pairs need 2: take mlm alone"
        )
    objectives = {name for task, _ in recipe.parts for name in task.objectives}
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
def transfer(
    model: Model,
    folder: str | Path,
    tokenizer: Tokenizer,
    store: Store,
    *,
    counts_file: str | Path | None = None,
    seed: int = 0,
) -> Report:
    """Copy a checkpoint's weights into ``model``, which ``init_config`` gave the structure of.

    Words are matched as ``matching.match`` does; those that are new are drawn from a normal
    distribution with the mean and deviation of the copied ones. The MLM decoder's bias is left
    to the caller: it is about the corpus. Raises ``InputError`` for a folder that does not hold
    what its config promises, and for a list of counts that cannot be read.
    """
    path = model_folder(folder)
    ranking = None if counts_file is None else read_counts(counts_file)
    description = _described(path)
    old, new, unused = _old_model(description, path, model)
    theirs, ours = dict(old.named_parameters()), dict(model.named_parameters())
    copied = [n for n in ours if n in theirs and n not in (_WORDS, _BIAS) and n not in new]
    for name in copied:
        ours[name].copy_(theirs[name])
    found = match(tokenizer, load_tokenizer(path, config=description.config), store.counts, ranking)
    ours[_WORDS].copy_(_vectors(theirs[_WORDS], found, seed))
    fresh = [n for n in ours if n not in copied and n not in (_WORDS, _BIAS)]
    return _report(str(folder), found, store.counts, copied, fresh, unused)


def _described(path: Path) -> Description:
    kind = str(read_model_json(path / CONFIG).get("model_type"))
    if kind not in _KINDS:
        raise InputError(
            f"{path / CONFIG}: model_type is {kind!r}; pretraining can start from 'bert' only "
            "(BERT itself, and MiniLM, SciBERT and others of its structure)"
        )
    description = describe(path, any_architecture=True)
    if description.config.add_cross_attention:
        raise InputError(
            f"{path / CONFIG}: add_cross_attention is true; pretraining has nothing that it could "
            "attend to: take a model without it"
        )
    return description


def _old_model(
    description: Description, path: Path, model: Model
) -> tuple[Model, set[str], tuple[str, ...]]:
    """The checkpoint as a model with those heads of ours that it may have, our names of what in it
    is not the checkpoint's, and the checkpoint's names of what it leaves out."""
    family, config = description.family, description.config
    specs = [family.spec_of(kind, description.values) for kind in model.specs if kind in _HEADS]
    with torch.random.fork_rng(devices=[]):
        old = Model(config, specs, pooler=model.pooler is not None)
    tensors, weights = read_weights(path)
    report = copy_weights(old, tensors, family.weight_map, description=description, lenient=True)
    if report.problems:
        problems = "; ".join(first_of(report.problems))
        raise InputError(f"{weights} does not fit its {CONFIG}: {problems}")
    names = {n: family.weight_map.their_name(n, config) for n, _ in old.named_parameters()}
    return old, {n for n, their in names.items() if their in report.new}, tuple(report.unused)


def _vectors(old: Tensor, found: Match, seed: int) -> Tensor:
    """(O, D) -> (V, D)"""
    vectors = _means(old, found.ids)
    known = torch.tensor([way not in ("special", "new") for way in found.ways])
    sample = vectors[known] if int(known.sum()) > 1 else old
    new = torch.tensor([way == "new" for way in found.ways])
    noise = torch.randn(int(new.sum()), old.shape[1], generator=torch.Generator().manual_seed(seed))
    vectors[new] = sample.mean(0) + sample.std(0) * noise
    return vectors


def _means(old: Tensor, ids: list[Ids]) -> Tensor:
    """The mean of the old vectors of each token, (V, D); zero where there are none."""
    flat = torch.tensor([i for some in ids for i in some], dtype=torch.int64)
    starts = torch.tensor([0, *accumulate(map(len, ids))][:-1], dtype=torch.int64)
    return embedding_bag(flat, old.float(), starts, mode="mean")


def _report(
    folder: str,
    found: Match,
    counts: np.ndarray,
    copied: list[str],
    new: list[str],
    unused: tuple[str, ...],
) -> Report:
    ways = np.array(found.ways)
    total = max(1, int(counts.sum()))
    hint = ""
    if found.unnamed:
        hint = (
            "the tokens are numbers, whose names say nothing: with a list of how often words were "
            "in text like yours (--init-counts) they are matched by rank"
        )
    return Report(
        folder,
        {way: int((ways == way).sum()) for way in WAYS},
        {way: float(counts[ways == way].sum()) / total for way in WAYS},
        tuple(copied),
        tuple(new),
        unused,
        hint,
    )


def _part(name: str) -> str:
    """The part that a tensor is of, for people."""
    kind, *rest = name.split(".")
    return f"the {rest[0]} head" if kind == "heads" else f"the {kind}"
