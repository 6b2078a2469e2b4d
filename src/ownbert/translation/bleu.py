"""BLEU of translations (Papineni et al. 2002), computed by sacrebleu."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from unicodedata import name

from ownbert.exceptions import InputError

# Scripts without spaces between words, by the Unicode names of their letters.
_UNSPACED = {"HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}


@dataclass(frozen=True)
class Bleu:
    """A BLEU score.

    Args:
        score: from 0 to 100.
        signature: sacrebleu's signature, which describes the computation.
    """

    score: float
    signature: str


def need_sacrebleu() -> None:
    """Raise ``InputError`` if sacrebleu is not installed."""
    if find_spec("sacrebleu") is None:
        raise InputError("BLEU needs sacrebleu: pip install 'ownbert[eval]'")


def bleu(
    translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> Bleu:
    """Corpus BLEU of detokenized texts with one reference each.

    sacrebleu tokenizes words by its rules "13a", Chinese by "zh", and scripts without spaces by
    characters.

    Raises:
        InputError: sacrebleu is missing, or the numbers of texts differ.
    """
    need_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU

    if len(translations) != len(references):
        raise InputError(
            "{count:,} translations and {count2:,} references", len(translations), len(references)
        )
    metric = BLEU(lowercase=lowercase, tokenize=_tokenization(references))
    result = metric.corpus_score(list(translations), [list(references)])
    return Bleu(float(result.score), str(metric.get_signature()))


def _tokenization(texts: Sequence[str]) -> str:
    """The name of sacrebleu's tokenization for the texts."""
    letters = [name(c, "").split(" ")[0] for c in "".join(texts[:200]) if c.isalpha()]
    if 4 * sum(script in _UNSPACED for script in letters) > len(letters):
        return "char"
    return "zh" if 4 * letters.count("CJK") > len(letters) else "13a"
