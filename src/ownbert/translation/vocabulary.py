"""The vocabularies of a translation model: one shared by both sides, or one for each."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ownbert.corpus.learn_vocabulary import learn_tokenizer
from ownbert.files.writing import remove_empty
from ownbert.run.file_names import SOURCE as SOURCE
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import TOKENIZER_FILES, has_tokenizer
from ownbert.translation.translation_pairs import Pairs
from ownbert.translation.translation_recipe import Vocabulary


def learn_vocabularies(pairs: Pairs, settings: Vocabulary) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of source and target, learnt from the training pairs; one object if shared."""

    def learn(*sides: list[str]) -> Tokenizer:
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
        shared = learn(pairs.sources, pairs.targets)
        return shared, shared
    return learn(pairs.sources), learn(pairs.targets)


def save_vocabularies(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Write the tokenizers into a model folder."""
    target.save(folder)
    # An earlier model in this folder may have had two vocabularies.
    for name in TOKENIZER_FILES:
        (folder / SOURCE / name).unlink(missing_ok=True)
    remove_empty([folder / SOURCE])
    if source is not target:
        source.save(folder / SOURCE)


def load_vocabularies(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target.

    Raises:
        InputError: the folder has no tokenizer.
    """
    target = Tokenizer.load(folder)
    if not has_tokenizer(folder / SOURCE):
        return target, target
    return Tokenizer.load(folder / SOURCE), target
