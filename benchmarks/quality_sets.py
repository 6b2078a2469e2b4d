"""Labelled sets for benchmarks/quality.py, read from a data folder: train, dev and test rows, and
unlabelled text.

    python benchmarks/quality_sets.py [--data FOLDER] [--sets NAME ...] [--write FOLDER]

prints the number of rows and classes of every set, and with --write also writes train.csv, dev.csv,
test.csv and unlabelled.txt. FOLDER contains one subfolder per source. Nothing is drawn at run time:
the same files give the same rows.

``banking77`` has no dev rows in its source: 1,000 training rows are held out, stratified.
``zhwiki`` and ``zhwiki-long`` are made from encyclopedia articles; see ``_articles``.
"""

import argparse
import csv
import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from anonymise import permuted_ids
from anonymise import split as words_of
from baselines import Labelled, read_csv, read_lines

DATA = Path("../shared/data")
SAMPLE = Path(__file__).resolve().parents[1] / "examples" / "anonymised"
HELD_OUT = 1000  # dev rows of a set that has none
SKEWED_ROWS, LARGEST_SKEWED, FEWEST_SKEWED = 300, 103, 4
SEED = 14  # of every split and permutation made here


# A result: what was measured, on what and how.
Cell = dict[str, Any]


@dataclass(frozen=True)
class TextSet:
    """Rows of a classification task.

    Attributes:
        name: of the set.
        train: labels and texts; so are dev and test.
        unlabelled: one document each.
        tokens: how a text is made of tokens: ``spaces`` (ids, split at white space), ``words``
            (English) or ``characters`` (Chinese).
    """

    name: str
    train: Labelled
    dev: Labelled
    test: Labelled
    unlabelled: list[str] = field(default_factory=list)
    tokens: str = "words"


def load_set(name: str, data: Path = DATA) -> TextSet:
    """A set of SETS, or a folder with train, dev, test (csv) and unlabelled (txt), or these .gz.

    Args:
        name: of the set, or a folder; tokens of a folder's texts are split at white space.
        data: folder with one subfolder per source.

    Raises:
        ValueError: it is neither.
    """
    if name in SETS:
        return SETS[name](name, data)
    if Path(name).is_dir():
        return _folder(Path(name).name, Path(name), "spaces")
    raise ValueError(f"{name!r} is neither a folder nor one of {', '.join(SETS)}")


def _file(folder: Path, name: str) -> Path | None:
    return next((p for p in sorted(folder.glob(f"{name}.*")) if p.is_file()), None)


def _folder(name: str, folder: Path, tokens: str) -> TextSet:
    files = [_file(folder, each) for each in ("train", "dev", "test")]
    missing = [n for n, f in zip(("train", "dev", "test"), files, strict=True) if f is None]
    if missing:
        raise ValueError(f"{folder} has no {', '.join(missing)}.csv")
    train, dev, test = (read_csv(file) for file in files if file is not None)
    text = _file(folder, "unlabelled")
    return TextSet(name, train, dev, test, read_lines(text) if text else [], tokens)


def _dbpedia_ids(name: str, data: Path) -> TextSet:
    return _folder(name, SAMPLE, "spaces")


def _dbpedia_ids_skewed(name: str, data: Path) -> TextSet:
    """Few labels of very different frequency: the k-th class, in an order that is drawn, has
    1 / k^1.3 times as many rows as the first. Of what is left of the training rows 300 have labels,
    and more where a class would have fewer than four; the others are the unlabelled text."""
    whole, rng = _dbpedia_ids(name, data), random.Random(SEED)
    classes = sorted(set(whole.train[0]))
    rng.shuffle(classes)
    share = {label: (number + 1) ** -1.3 for number, label in enumerate(classes)}
    parts = [
        _take(rows, [i for i, label in enumerate(rows[0]) if rng.random() < share[label]])
        for rows in (whole.train, whole.dev, whole.test)
    ]
    labels, texts = parts[0]
    order = [labels[:i].count(label) for i, label in enumerate(labels)]  # of its class
    chosen = [i for i in range(len(labels)) if i < SKEWED_ROWS or order[i] < FEWEST_SKEWED]
    unlabelled = [text for i, text in enumerate(texts) if i not in set(chosen)]
    return TextSet(name, _take(parts[0], chosen), parts[1], parts[2], unlabelled, "spaces")


def _dbpedia(name: str, data: Path) -> TextSet:
    return _folder(name, data / "dbpedia14", "words")


def _tsv(path: Path) -> Labelled:
    with open(path, encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [row[0] for row in rows], [row[1] for row in rows]


def _take(rows: Labelled, chosen: Sequence[int]) -> Labelled:
    return [rows[0][i] for i in chosen], [rows[1][i] for i in chosen]


def hold_out(labels: Sequence[str], n: int, seed: int = SEED) -> tuple[list[int], list[int]]:
    """Indices of the rows that remain and of ``n`` rows held out, as many of each class as is its
    share (largest remainders), both ascending."""
    rng, of = random.Random(seed), _by_label(zip(labels, range(len(labels)), strict=True))
    shares = {label: n * len(rows) / len(labels) for label, rows in of.items()}
    counts = {label: int(share) for label, share in shares.items()}
    by_remainder = sorted(shares, key=lambda label: (counts[label] - shares[label], label))
    for label in by_remainder[: n - sum(counts.values())]:
        counts[label] += 1
    held = {row for label in sorted(of) for row in rng.sample(of[label], counts[label])}
    return [row for row in range(len(labels)) if row not in held], sorted(held)


def _banking(name: str, data: Path) -> TextSet:
    rows, test = (_tsv(data / "banking77" / f"{part}.tsv") for part in ("train", "test"))
    train, dev = hold_out(rows[0], HELD_OUT)
    return TextSet(name, _take(rows, train), _take(rows, dev), test)


def _polarity(name: str, data: Path) -> TextSet:
    names = {"0": "negative", "1": "positive"}
    parts = [_tsv(data / "sentence-polarity" / f"{p}.tsv") for p in ("train", "dev", "test")]
    train, dev, test = (([names[label] for label in labels], texts) for labels, texts in parts)
    articles = documents(data / "enwiki-sample" / "corpus.txt.gz")
    return TextSet(name, train, dev, test, [" ".join(article) for article in articles])


def _movies(name: str, data: Path) -> TextSet:
    parts = []
    for part in ("train", "dev", "test"):
        path = data / "movie-reviews" / f"{part}.jsonl.gz"
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        labels = ["positive" if row["label"] else "negative" for row in rows]
        parts.append((labels, [" ".join(row["sentences"]) for row in rows]))
    return TextSet(name, *parts)


def _movies_ids(name: str, data: Path) -> TextSet:
    """The same rows with integer ids for words, as examples/anonymise.py makes them."""
    return _as_ids(_movies(name, data), words_of)


def _few_movies_ids(name: str, data: Path) -> TextSet:
    """As many of these training rows as the name says, half of them of each class."""
    whole, rng = _movies_ids(name, data), random.Random(SEED)
    of = _by_label(zip(whole.train[0], range(len(whole.train[0])), strict=True))
    each = int(name.rpartition("-")[2]) // len(of)
    chosen = sorted(row for label in sorted(of) for row in rng.sample(of[label], each))
    return TextSet(name, _take(whole.train, chosen), whole.dev, whole.test, tokens="spaces")


def _as_ids(clear: TextSet, tokens_of: Callable[[str], Sequence[str]]) -> TextSet:
    """A set whose tokens are integers, by a permutation that nobody keeps."""
    parts = {"train": clear.train, "dev": clear.dev, "test": clear.test}
    parts["unlabelled"] = [""] * len(clear.unlabelled), clear.unlabelled
    files = {
        part: [(label, list(tokens_of(text))) for label, text in zip(*rows, strict=True)]
        for part, rows in parts.items()
    }
    ids = permuted_ids(files, SEED)
    train, dev, test, (_, unlabelled) = [
        ([label for label, _ in rows], [" ".join(ids[t] for t in tokens) for _, tokens in rows])
        for rows in files.values()
    ]
    return TextSet(clear.name, train, dev, test, unlabelled, "spaces")


def documents(path: Path) -> list[list[str]]:
    """The documents of a gzipped text file, one sentence per line, a blank line between them."""
    found: list[list[str]] = [[]]
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                found[-1].append(line.strip())
            elif found[-1]:
                found.append([])
    return found if found[-1] else found[:-1]


# What the first sentence of an article says its subject is, by the noun at the end of the sentence
# or of the clause after 是 or 为. Nouns that have a second meaning there (单位 of 文物保护单位,
# which is a tower or a temple) are left out.
NOUNS = {
    "crater": "撞击坑 坑残迹 陨坑 陨石坑 环形山",
    "storm": "气旋 飓风 风暴 飓风季 台风",
    "station": "车站 铁站",
    "official": "官员 宰相 大臣 武将 将领 将军",
    "politician": "政治人物 政治家 革命家",
    "athlete": "运动员 教练 裁判 球员",
    "film or television": "电影 剧情片 喜剧片 恐怖片 纪录片 电视剧 剧集 首播 剧场版作品",
    "school": "中学 大学 学院 学校 院校 高中 小学",
    "agency": "机构 机关 部门 下属局 委员会",
    "company": "公司 企业 制造商 银行",
    "party": "政党 组织",
    "sports event": "赛事 联赛 代表团 锦标赛 赛季",
}
SUFFIXES = [(noun, name) for name, nouns in NOUNS.items() for noun in nouns.split()]
BRACKETS = re.compile(r"[（(][^（）()]*[)）]")
CLAUSE = re.compile(r"(?:是|為|为)([^，。；、]*)")
MOST_OF_A_CLASS = 200  # a class of 600 moon craters would be half of the set
SHORT_TEXT = 200  # characters of zhwiki's texts
LONG_TEXT = 600  # characters that a document of zhwiki-long has at least
FEWEST_OF_A_CLASS = 40


def article_class(sentence: str) -> str | None:
    """The class of an article by its first sentence; None if it names none of NOUNS, or two."""
    sentence = BRACKETS.sub("", sentence).rstrip("。！？；;")
    clause = CLAUSE.search(sentence)
    found = set()
    for end in (sentence, clause[1] if clause else ""):
        names = [(len(noun), name) for noun, name in SUFFIXES if end.endswith(noun)]
        if names:
            found.add(max(names)[1])
    return found.pop() if len(found) == 1 else None


def _articles(name: str, data: Path) -> TextSet:
    """Encyclopedia articles in Chinese, classified by what the first sentence says they are about.

    The first sentence is removed from the text. A text of ``zhwiki`` is the next 200 characters; of
    ``zhwiki-long``, the whole rest where it has at least 600 characters, so there are fewer rows
    and classes. At most 200 articles of a class are taken and at least 40 are needed; the other
    articles are the unlabelled text, and no labelled one is among it. Half of the rows are for
    training, a sixth for dev, a third for the test.
    """
    is_long = name == "zhwiki-long"
    articles = documents(data / "zhwiki-sample" / "corpus.txt.gz")
    of: dict[str, list[int]] = {}
    for i, article in enumerate(articles):
        label = article_class(article[0])
        length = sum(map(len, article[1:]))
        if label and length >= (LONG_TEXT if is_long else SHORT_TEXT):
            of.setdefault(label, []).append(i)
    rng = random.Random(SEED)
    rows = [
        (label, i)
        for label in sorted(of)
        if len(of[label]) >= FEWEST_OF_A_CLASS
        for i in rng.sample(of[label], min(len(of[label]), MOST_OF_A_CLASS))
    ]
    labelled = (
        [label for label, _ in rows],
        ["".join(articles[i][1:])[: None if is_long else SHORT_TEXT] for _, i in rows],
    )
    rest, test = hold_out(labelled[0], len(rows) // 3)
    rest_rows = _take(labelled, rest)
    train, dev = hold_out(rest_rows[0], len(rows) // 6)
    used = {i for _, i in rows}
    unlabelled = ["".join(article) for i, article in enumerate(articles) if i not in used]
    parts = (_take(rest_rows, train), _take(rest_rows, dev), _take(labelled, test))
    return TextSet(name, *parts, unlabelled, "characters")


def _long_articles_skewed(name: str, data: Path) -> TextSet:
    """Few long documents of ids: the articles of at least 600 characters, whose characters are ids.
    The k-th class by size has 103 * .74^k training rows, but at least four; a third of its others
    are dev rows, the rest is for the test. All other articles
    are the unlabelled text."""
    articles = documents(data / "zhwiki-sample" / "corpus.txt.gz")
    of: dict[str, list[int]] = {}
    for i, article in enumerate(articles):
        label = article_class(article[0])
        if label and sum(map(len, article[1:])) >= LONG_TEXT:
            of.setdefault(label, []).append(i)
    rng, parts = random.Random(SEED), ([], [], [])
    for k, label in enumerate(sorted(of, key=lambda label: (-len(of[label]), label))):
        rows = [(label, "".join(articles[i][1:])) for i in rng.sample(of[label], len(of[label]))]
        count = max(FEWEST_SKEWED, round(LARGEST_SKEWED * 0.74**k))
        until = count + (len(rows) - count) // 3
        for part, own in zip(parts, (rows[:count], rows[count:until], rows[until:]), strict=True):
            part += own
    used = {i for rows in of.values() for i in rows}
    unlabelled = ["".join(article) for i, article in enumerate(articles) if i not in used]
    train, dev, test = map(_columns, parts)
    return _as_ids(TextSet(name, train, dev, test, unlabelled), lambda text: "".join(text.split()))


def several_labels(data: Path = DATA) -> dict[str, list[tuple[list[str], str]]]:
    """Short reports of ids with any number of 17 labels, as (labels, text): 8,000 rows for
    training, 1,000 for dev, 2,000 for the test.

    A report has a span of 8 to 14 tokens for each of its labels, which are the classes of dbpedia14
    and three of zhwiki, and others of articles of no class, in any order. A quarter has no label.
    The 858 most frequent words and characters are ids; the others are left out.
    """
    own = {part: _by_label(zip(*rows, strict=True)) for part, rows in _dbpedia_parts(data)}
    articles = documents(data / "zhwiki-sample" / "corpus.txt.gz")
    of = _by_label([(article_class(a[0]), " ".join("".join(a[1:]))) for a in articles])
    others = of.pop(None)
    largest = sorted(of, key=lambda label: (-len(of[label]), label))[:3]
    parts = ("train", "dev", "test")
    rng = random.Random(SEED)
    for label in largest:
        for k, part in enumerate(parts):
            own[part][label] = of[label][k::3]
    counts = Counter(w for texts in own["train"].values() for text in texts for w in text.split())
    counts.update(token for text in others[::3] for token in text.split())
    kept = [word for word, _ in counts.most_common(858)]
    ids = dict(zip(kept, map(str, rng.sample(range(1, 859), len(kept))), strict=True))

    def span(texts: list[str]) -> list[str]:
        tokens: list[str] = []
        while len(tokens) < 8:
            tokens = [ids[token] for token in rng.choice(texts).split() if token in ids]
        size = min(rng.randint(8, 14), len(tokens))
        start = rng.randint(0, len(tokens) - size)
        return tokens[start : start + size]

    found: dict[str, list[tuple[list[str], str]]] = {}
    for k, (part, count) in enumerate(zip(parts, (8000, 1000, 2000), strict=True)):
        rows = found[part] = []
        for _ in range(count):
            number = rng.choices(range(4), weights=(25, 35, 25, 15))[0]
            labels = sorted(rng.sample(sorted(own[part]), number))
            spans = [span(own[part][label]) for label in labels]
            spans += [span(others[k::3]) for _ in range(4 - number)]
            rng.shuffle(spans)
            rows.append((labels, " ".join(token for tokens in spans for token in tokens)))
    return found


def _dbpedia_parts(data: Path) -> list[tuple[str, Labelled]]:
    clear = _dbpedia("dbpedia14", data)
    parts = {"train": clear.train, "dev": clear.dev, "test": clear.test}
    return [
        (part, (labels, [" ".join(words_of(text)) for text in texts]))
        for part, (labels, texts) in parts.items()
    ]


def _zh_sentences(name: str, data: Path) -> TextSet:
    """Single Chinese sentences of 8 to 60 characters, classified by what their article is about:
    one of each training article, up to 30 of a class, and three of each other one. The other
    articles are the unlabelled text."""
    articles = documents(data / "zhwiki-sample" / "corpus.txt.gz")
    of = _by_label([(article_class(article[0]), i) for i, article in enumerate(articles)])
    rng, parts, used = random.Random(SEED), ([], [], []), set()
    for label in sorted(of.keys() - {None}):
        chosen = rng.sample(of[label], len(of[label]))
        if len(chosen) < FEWEST_OF_A_CLASS:
            continue
        for part, own, most in zip(
            parts, (chosen[28:100], chosen[20:28], chosen[:20]), (1, 3, 3), strict=True
        ):
            texts = [
                sentence
                for i in own
                for sentence in [s for s in articles[i][1:] if 8 <= len(s) <= 60][:most]
            ]
            part += [(label, text) for text in (texts[:30] if most == 1 else texts)]
        used.update(chosen[:100])
    unlabelled = ["".join(article) for i, article in enumerate(articles) if i not in used]
    train, dev, test = map(_columns, parts)
    return TextSet(name, train, dev, test, unlabelled, "characters")


def _article_sentences(name: str, data: Path) -> TextSet:
    """Which of 150 articles of English Wikipedia, those with most sentences, is this sentence from?

    12 training sentences of each; of the k-th article of ``enwiki-150-skewed`` 60 * .97^k, but at
    least four. The other articles are the unlabelled text.
    """
    articles = documents(data / "enwiki-sample" / "corpus.txt.gz")
    chosen = sorted(range(len(articles)), key=lambda i: -len(articles[i]))[:150]
    rng, parts = random.Random(SEED), ([], [], [])
    for k, i in enumerate(chosen):
        sentences = list(dict.fromkeys(s for s in articles[i] if 30 < len(s) < 400))
        rng.shuffle(sentences)
        count = max(4, round(60 * 0.97**k)) if name.endswith("skewed") else 12
        for part, own in zip(
            parts, (sentences[9 : 9 + count], sentences[6:9], sentences[:6]), strict=True
        ):
            part += [(f"article {k}", sentence) for sentence in own]
    used = set(chosen)
    unlabelled = [" ".join(article) for i, article in enumerate(articles) if i not in used]
    train, dev, test = map(_columns, parts)
    return TextSet(name, train, dev, test, unlabelled)


def _question_topics(name: str, data: Path) -> TextSet:
    """Which article is a question of SQuAD 2.0 about? Eight training rows of each of the articles;
    the other questions and all paragraphs are the unlabelled text."""
    with gzip.open(data / "squad2-dev-half" / "train.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    rng, parts, unlabelled = random.Random(SEED), ([], [], []), []
    for article in articles:
        paragraphs = article["paragraphs"]
        questions = [qa["question"] for paragraph in paragraphs for qa in paragraph["qas"]]
        rng.shuffle(questions)
        for part, own in zip(
            parts, (questions[20:28], questions[15:20], questions[:15]), strict=True
        ):
            part += [(article["title"], question) for question in own]
        unlabelled += [*questions[28:], *(paragraph["context"] for paragraph in paragraphs)]
    train, dev, test = map(_columns, parts)
    return TextSet(name, train, dev, test, unlabelled)


def _banking_skewed(name: str, data: Path) -> TextSet:
    """banking77 with 60 * .95^k training rows of the k-th class, in an order that is drawn, but at
    least four; the others are the unlabelled text."""
    rows, rng = _banking(name, data), random.Random(SEED)
    of = _by_label(zip(rows.train[0], range(len(rows.train[0])), strict=True))
    labels, chosen = rng.sample(sorted(of), len(of)), []
    for k, label in enumerate(labels):
        count = min(max(4, round(60 * 0.95**k)), len(of[label]))
        chosen += rng.sample(of[label], count)
    drawn = set(chosen)
    unlabelled = [text for i, text in enumerate(rows.train[1]) if i not in drawn]
    return TextSet(name, _take(rows.train, chosen), rows.dev, rows.test, unlabelled)


def _by_label(rows: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
    """The rows of each label."""
    found: dict[Any, list[int]] = {}
    for label, row in rows:
        found.setdefault(label, []).append(row)
    return found


def _columns(rows: Sequence[tuple[str, str]]) -> Labelled:
    """Labels and texts of rows."""
    return [label for label, _ in rows], [text for _, text in rows]


SETS: dict[str, Callable[[str, Path], TextSet]] = {
    "dbpedia14-ids": _dbpedia_ids,
    "dbpedia14-ids-skewed": _dbpedia_ids_skewed,
    "dbpedia14": _dbpedia,
    "banking77": _banking,
    "sentence-polarity": _polarity,
    "movie-reviews": _movies,
    "movie-reviews-ids": _movies_ids,
    "movie-reviews-ids-200": _few_movies_ids,
    "zhwiki": _articles,
    "zhwiki-long": _articles,
    "zhwiki-long-skewed": _long_articles_skewed,
    "zhwiki-sentences": _zh_sentences,
    "enwiki-150": _article_sentences,
    "enwiki-150-skewed": _article_sentences,
    "squad2-topics": _question_topics,
    "banking77-skewed": _banking_skewed,
}


def write_rows(path: Path, rows: Labelled) -> None:
    """A csv file with the columns label and text."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("label", "text"))
        writer.writerows(zip(*rows, strict=True))


def write_documents(path: Path, texts: Sequence[str]) -> None:
    """A text file with one document per line."""
    path.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8")


def read_cells(path: Path) -> list[Cell]:
    """The results of a file. An incomplete last line, from a run that was killed, is removed."""
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    complete = text[: text.rfind("\n") + 1]
    if complete != text:
        path.write_text(complete, encoding="utf-8")
    return [json.loads(line) for line in complete.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--write", type=Path, help="folder for the files of every set")
    given = parser.parse_args()
    for name in given.sets:
        found = load_set(name, given.data)
        parts = {"train": found.train, "dev": found.dev, "test": found.test}
        classes = Counter(found.train[0])
        sizes = " ".join(f"{part} {len(rows[0]):,}" for part, rows in parts.items())
        print(
            f"{name}: {len(classes)} classes of {min(classes.values())} to {max(classes.values())} "
            f"training rows; {sizes}; unlabelled documents {len(found.unlabelled):,}"
        )
        if given.write:
            folder = given.write / found.name
            folder.mkdir(parents=True, exist_ok=True)
            for part, rows in parts.items():
                write_rows(folder / f"{part}.csv", rows)
            write_documents(folder / "unlabelled.txt", found.unlabelled)


if __name__ == "__main__":
    main()
