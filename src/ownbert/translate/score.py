"""BLEU of translations (Papineni et al. 2002), by sacrebleu."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from ownbert.errors import InputError


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
    """BLEU of the texts as they are, tokenised by sacrebleu ("13a"; Chinese by characters).

    Raises ``InputError`` where sacrebleu is missing, and for texts of different numbers.
    """
    need_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU

    if len(written) != len(truth):
        raise InputError(f"{len(written):,} translations and {len(truth):,} references")
    letters = "".join(truth[:200])
    chinese = sum("一" <= c <= "鿿" for c in letters) > len(letters) / 4
    metric = BLEU(lowercase=lowercase, tokenize="zh" if chinese else "13a")
    found = metric.corpus_score(list(written), [list(truth)])
    return Bleu(float(found.score), str(metric.get_signature()))
