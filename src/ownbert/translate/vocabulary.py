"""The vocabularies of a translation: one for both sides, or one each."""

import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ownbert.text.files import has_tokenizer
from ownbert.text.learn import learn_tokenizer
from ownbert.text.tokenizer import Tokenizer
from ownbert.translate.pairs import Pairs
from ownbert.translate.recipe import Vocabulary

# The folder of the source's vocabulary inside of a model's, where it is not that of the target.
SOURCE = "source"


def learn_vocabularies(pairs: Pairs, settings: Vocabulary) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of source and target, learnt from the training pairs; one and the same if
    shared."""

    def learnt(*sides: list[str]) -> Tokenizer:
        def texts() -> Iterator[str]:
            return chain(*sides)

        return learn_tokenizer(
            texts,
            kind=settings.kind,
            vocab_size=settings.size,
            min_count=settings.min_count,
            lowercase=settings.lowercase,
        )

    if settings.shared:
        both = learnt(pairs.sources, pairs.targets)
        return both, both
    return learnt(pairs.sources), learnt(pairs.targets)


def save_vocabularies(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    target.save(folder)
    # A model that stood here before may have had two.
    shutil.rmtree(folder / SOURCE, ignore_errors=True)
    if source is not target:
        source.save(folder / SOURCE)


def load_vocabularies(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Those of source and target. ``InputError`` for a folder without."""
    target = Tokenizer.load(folder)
    if not has_tokenizer(folder / SOURCE):
        return target, target
    return Tokenizer.load(folder / SOURCE), target
