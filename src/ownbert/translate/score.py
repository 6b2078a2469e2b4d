"""BLEU of translations (Papineni et al. 2002), by sacrebleu."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from unicodedata import name

from ownbert.errors import InputError

# Scripts without spaces between words, as Unicode names their letters.
_UNSPACED = {"HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}


@dataclass(frozen=True)
class Bleu:
    """score, from 0 to 100, and sacrebleu's signature, which says how it was counted."""

    score: float
    signature: str


def need_sacrebleu() -> None:
    """``InputError`` where it is missing."""
    if find_spec("sacrebleu") is None:
        raise InputError("BLEU needs sacrebleu: pip install 'ownbert[eval]'")


def bleu(written: Sequence[str], truth: Sequence[str], *, lowercase: bool = False) -> Bleu:
    """BLEU of the texts as they are, cut into words by sacrebleu ("13a"; Chinese by characters, and
    so is what else is written without spaces).

    Raises ``InputError`` where sacrebleu is missing, and for texts of different numbers.
    """
    need_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU

    if len(written) != len(truth):
        raise InputError(f"{len(written):,} translations and {len(truth):,} references")
    metric = BLEU(lowercase=lowercase, tokenize=_cut(truth))
    found = metric.corpus_score(list(written), [list(truth)])
    return Bleu(float(found.score), str(metric.get_signature()))


def _cut(texts: Sequence[str]) -> str:
    """sacrebleu's name of the way to cut such texts into words."""
    letters = [name(c, "").split(" ")[0] for c in "".join(texts[:200]) if c.isalpha()]
    if 4 * sum(script in _UNSPACED for script in letters) > len(letters):
        return "char"
    return "zh" if 4 * letters.count("CJK") > len(letters) else "13a"
