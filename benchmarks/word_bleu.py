"""BLEU on lower-cased words, as in tutorials that tokenise with spaCy first.

    pip install spacy sacrebleu
    python benchmarks/word_bleu.py written.en test.en

Both files are tokenised with spaCy's English rules (no model is needed) and compared as tokens:
corpus BLEU with up to 4-grams, without smoothing, as torchtext's bleu_score computes it. The result
is not comparable with sacrebleu's own on raw text.
"""

import sys
from pathlib import Path

import sacrebleu
import spacy


def words(path: str) -> list[str]:
    cut = spacy.blank("en").tokenizer
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [" ".join(token.text.lower() for token in cut(line)) for line in lines]


def main() -> None:
    written, truth = (words(path) for path in sys.argv[1:3])
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    print(f"{metric.corpus_score(written, [truth]).score:.2f}", metric.get_signature())


if __name__ == "__main__":
    main()
