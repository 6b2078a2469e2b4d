"""Replace every word of a text classification dataset with an integer id.

    python examples/anonymise.py SOURCE_DIR OUTPUT_DIR [--seed N]

SOURCE_DIR contains train.csv, dev.csv and test.csv (header ``label,text``) and unlabelled.txt
(one document per line). The same four files are written to OUTPUT_DIR, gzipped, with ids for words.

Text is lower-cased and split by ``\\w+|[^\\w\\s]``: a run of letters, digits and underscores is a
token, and every other character except whitespace is a token of its own. So a full stop is never
attached to the word before it, and anyone who knows its id can split a document into sentences.

The ids are a random permutation over the distinct tokens of all files together. The mapping is
kept in memory only: the output reveals counts and order, but no words.
"""

import argparse
import csv
import gzip
import random
import re
import sys
from collections import Counter
from pathlib import Path

LABELLED = ("train", "dev", "test")
TOKEN = re.compile(r"\w+|[^\w\s]")

Rows = list[tuple[str, list[str]]]


def split(text: str) -> list[str]:
    """Words and punctuation marks of a text, lower-cased."""
    # unlabelled.txt writes quotes and line breaks as \\" and \\n: otherwise the n would become part
    # of the next word.
    return TOKEN.findall(text.replace("\\n", " ").replace('\\"', '"').lower())


def read_source(folder: Path) -> dict[str, Rows]:
    """The rows of each file as (label, tokens), with an empty label for unlabelled rows."""
    files: dict[str, Rows] = {}
    for name in LABELLED:
        with open(folder / f"{name}.csv", encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            if not {"label", "text"} <= set(reader.fieldnames or ()):
                raise ValueError(f"{name}.csv: needs label and text, has {reader.fieldnames}")
            files[name] = [(row["label"], split(row["text"])) for row in reader]
    with open(folder / "unlabelled.txt", encoding="utf-8", newline="\n") as lines:
        files["unlabelled"] = [("", split(line)) for line in lines]
    return files


def permuted_ids(files: dict[str, Rows], seed: int) -> dict[str, str]:
    """A random one-to-one map from the distinct tokens of all files to 1..N."""
    # Sorted first: the order of a set of strings varies between runs of Python.
    tokens = sorted({token for rows in files.values() for _, row in rows for token in row})
    ids = list(range(1, len(tokens) + 1))
    random.Random(seed).shuffle(ids)
    return {token: str(i) for token, i in zip(tokens, ids, strict=True)}


def write_output(folder: Path, files: dict[str, Rows], ids: dict[str, str]) -> None:
    """Write each file as .gz without a name or time in its header, to be reproducible."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        texts = [(label, " ".join(ids[token] for token in tokens)) for label, tokens in rows]
        if name in LABELLED:
            # Labels with a comma or a quote would need quoting: raise rather than write bad csv.
            if any(set(label) & set(',"\n') for label, _ in texts):
                raise ValueError(
                    f"{name}.csv: labels must not contain commas, quotes or line breaks"
                )
            lines = ["label,text", *(f"{label},{text}" for label, text in texts)]
        else:
            lines = [text for _, text in texts]
        path = folder / f"{name}{'.csv' if name in LABELLED else '.txt'}.gz"
        with (
            open(path, "wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0) as out,
        ):
            out.write(("\n".join(lines) + "\n").encode())


def report(files: dict[str, Rows], ids: dict[str, str]) -> None:
    """Print counts, and the ids of the sentence ends with their rank, for each file."""
    print(f"{len(ids)} distinct tokens in all")
    for name, rows in files.items():
        counts = Counter(token for _, row in rows for token in row)
        print(f"{name}: {len(rows)} documents, {counts.total()} tokens, {len(counts)} distinct")
        print("  most frequent ids:", *(f"{ids[t]} x{n}" for t, n in counts.most_common(5)))
        rank = {token: r for r, (token, _) in enumerate(counts.most_common(), 1)}
        # Revealing three ids gives no words away and lets users split the sample into sentences.
        ends = (f"{ids[t]} x{counts[t]} (rank {rank[t]})" for t in ".!?" if counts[t])
        print("  ids of sentence ends:", *ends)
        if rank.get(".", len(rank)) > 10:
            print(f"  warning: the full stop of {name} is not among the ten most frequent tokens")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Replace every word of a dataset with an id.")
    parser.add_argument(
        "source", type=Path, help="folder with train.csv, dev.csv, test.csv and unlabelled.txt"
    )
    parser.add_argument("output", type=Path, help="output folder for the gzipped files")
    parser.add_argument("--seed", type=int, default=14, help="seed of the permutation")
    options = parser.parse_args(arguments)
    try:
        files = read_source(options.source)
        ids = permuted_ids(files, options.seed)
        write_output(options.output, files, ids)
    except (OSError, ValueError, csv.Error) as error:
        sys.exit(f"error: {error}")
    report(files, ids)


if __name__ == "__main__":
    main()
