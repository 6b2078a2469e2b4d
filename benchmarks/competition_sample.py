"""A hundredth of the anonymised news competition, made from encyclopedia text.

    python benchmarks/competition_sample.py [--data FOLDER] -o FOLDER

writes train.csv, test.csv and unlabelled.txt: 2,000 documents whose characters are ids, as in the
competition (200,000 documents of 907 ids on average, 6,869 different ids, 14 classes). Of these 630
have one of eight labels, as zhwiki-long of quality_sets.py, two thirds of them for training.
"""

import argparse
import random
from pathlib import Path

from quality_sets import DATA, load_set, write_documents, write_rows

DOCUMENTS, SEED = 2000, 14


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    whole = load_set("zhwiki-long", given.data)
    train = [part + more for part, more in zip(whole.train, whole.dev, strict=True)]
    labelled = len(train[0]) + len(whole.test[0])
    unlabelled = random.Random(SEED).sample(whole.unlabelled, DOCUMENTS - labelled)
    characters = sorted({c for text in [*train[1], *whole.test[1], *unlabelled] for c in text})
    ids = random.Random(SEED).sample(range(len(characters)), len(characters))
    of = dict(zip(characters, map(str, ids), strict=True))

    def as_ids(text: str) -> str:
        return " ".join(of[c] for c in text if not c.isspace())

    given.output.mkdir(parents=True, exist_ok=True)
    write_rows(given.output / "train.csv", (train[0], [as_ids(t) for t in train[1]]))
    write_rows(given.output / "test.csv", (whole.test[0], [as_ids(t) for t in whole.test[1]]))
    write_documents(given.output / "unlabelled.txt", [as_ids(t) for t in unlabelled])
    lengths = [len(as_ids(t).split()) for t in [*train[1], *whole.test[1], *unlabelled]]
    print(
        f"{labelled:,} labelled documents of {len(set(train[0]))} classes, {len(unlabelled):,} "
        f"without; {sum(lengths) / len(lengths):,.0f} ids on average, {len(characters):,} different"
    )


if __name__ == "__main__":
    main()
