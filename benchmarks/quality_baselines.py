"""The baselines of benchmarks/quality.py: features of a set, linear classifiers on them, and the
choice among their settings by the dev rows. Nothing here is taken from OwnBERT itself but the
frozen vectors of a pretrained model.

Features come from the text of all training rows (of which a draw of labels uses the labels of a
few) and the unlabelled text, which is also what OwnBERT is given. Where a set has unlabelled text,
document frequencies of the training text alone are a second choice, because other text can be of
another kind.
"""

import functools
import importlib.util
import itertools
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from quality_sets import TextSet
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from anonymise import split as words_of
from baselines import LSA_SIZE, classifier

LOGISTIC_C = (1.0, 10.0, 100.0, 1000.0)
SVM_C = (0.1, 1.0, 10.0)
NB_SVM_C = (0.01, 0.1, 1.0, 10.0)
NB_SVM_INTERPOLATION = (0.25, 0.5, 1.0)
WINDOW = 5  # words on each side that count as neighbours
MIN_COUNT = 3  # occurrences of a word that has a vector
TEMPERATURES = 2.0 ** np.arange(-4, 7)

# A setting that does not converge in its steps is one more candidate, judged on dev like the rest.
warnings.simplefilter("ignore", ConvergenceWarning)

Splits = list[tuple[np.ndarray, np.ndarray]]  # dev and test rows, as indices of the evaluated rows


@dataclass(frozen=True)
class Candidate:
    """One setting of a method, and its scores (evaluated rows, C); a higher one is likelier."""

    setting: str
    scores: np.ndarray


@dataclass(frozen=True)
class Result:
    """A method with the settings chosen on dev rows.

    Attributes:
        macro_f1: on the test rows, mean over the splits; accuracy too.
        accuracy: see macro_f1.
        dev_macro_f1: of the chosen settings, mean over the splits.
        settings: the one chosen in each split.
        chosen: its scores in each split.
    """

    macro_f1: float
    accuracy: float
    dev_macro_f1: float
    settings: tuple[str, ...]
    chosen: tuple[np.ndarray, ...]


class Features:
    """Matrices of a set, made once and used for every draw of labels.

    Rows of a matrix: all training rows, and the evaluated rows, which are dev and test rows.
    """

    def __init__(self, source: TextSet, probe: Path | None = None) -> None:
        self.source, self.probe = source, probe
        self.classes = sorted(set(source.train[0]))
        self.train_labels = np.array(source.train[0])
        self.labels = np.array([*source.dev[0], *source.test[0]])
        self.train, self.texts = source.train[1], [*source.dev[1], *source.test[1]]
        self.corpora = ["train", "all"] if source.unlabelled else ["train"]

    def splits(self, folds: int, seed: int = 0) -> Splits:
        """Dev and test rows; with more than one fold, dev and test rows of the set are pooled, and
        each fold is the test rows once while the others are the dev rows.

        Raises:
            ValueError: a class has fewer rows than there are folds.
        """
        if folds == 1:
            n = len(self.source.dev[0])
            return [(np.arange(n), np.arange(n, len(self.labels)))]
        fold_of = np.empty(len(self.labels), dtype=int)
        rng = np.random.default_rng(seed)
        for label in self.classes:
            rows = np.flatnonzero(self.labels == label)
            if len(rows) < folds:
                raise ValueError(f"{self.source.name}: {label} has {len(rows)} rows, {folds} folds")
            fold_of[rng.permutation(rows)] = np.arange(len(rows)) % folds
        return [(np.flatnonzero(fold_of != k), np.flatnonzero(fold_of == k)) for k in range(folds)]

    @functools.lru_cache(maxsize=8)  # noqa: B019  the object lives as long as its set is worked on
    def matrices(self, view: str, corpus: str) -> tuple[Any, Any]:
        """Features of the training rows and of the evaluated rows.

        Args:
            view: a name of ``_VIEWS``.
            corpus: ``train``, the text of all training rows, or ``all``, the unlabelled text too.
        """
        return _VIEWS[view](self, corpus)

    @functools.cached_property
    def words(self) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
        """Words of training, evaluated and unlabelled texts; those of ids are ids."""
        cut = _tokenizer(self.source.tokens)
        return tuple(
            [cut(text) for text in texts]
            for texts in (self.train, self.texts, self.source.unlabelled)
        )

    def corpus(self, name: str, texts: tuple[Any, Any, Any]) -> list[Any]:
        return [*texts[0], *texts[2]] if name == "all" else texts[0]


def _tokenizer(tokens: str) -> Callable[[str], list[str]]:
    if tokens == "spaces":
        return str.split
    if tokens == "words":
        return words_of
    import jieba

    jieba.setLogLevel(logging.WARNING)
    return lambda text: [word for word in jieba.lcut(text.lower()) if word.strip()]


def _tf_idf(
    corpus: list[Any], texts: list[list[Any]], ngrams: tuple[int, int], **settings: Any
) -> list[Any]:
    """TF-IDF of n-grams that are in at least two documents of the corpus.

    The n-grams are those of ``texts[0]``, the training rows: one that is in no training row has no
    weight. Their document frequencies are of the whole corpus.
    """
    settings = {"ngram_range": ngrams, "lowercase": False, "dtype": np.float32, **settings}
    vocabulary = CountVectorizer(**settings).fit(texts[0]).vocabulary_
    vectorizer = CountVectorizer(vocabulary=sorted(vocabulary), **settings)
    counts = vectorizer.transform(corpus)
    kept = np.flatnonzero(counts.getnnz(axis=0) >= 2)
    weights = TfidfTransformer(sublinear_tf=True).fit(counts[:, kept])
    return [weights.transform(vectorizer.transform(each)[:, kept]) for each in texts]


_IS_TOKENS = {"analyzer": "word", "tokenizer": list, "preprocessor": list, "token_pattern": None}


def _ngrams(features: Features, corpus: str) -> tuple[Any, Any]:
    """TF-IDF of 1 and 2 words; in Chinese, of 1 to 3 characters."""
    if features.source.tokens == "characters":
        texts = (features.train, features.texts, features.source.unlabelled)
        documents = features.corpus(corpus, texts)
        train, rest = _tf_idf(documents, [texts[0], texts[1]], (1, 3), analyzer="char")
    else:
        texts = features.words
        documents = features.corpus(corpus, texts)
        train, rest = _tf_idf(documents, [texts[0], texts[1]], (1, 2), **_IS_TOKENS)
    return train, rest


def _with_characters(features: Features, corpus: str) -> tuple[Any, Any]:
    """Beside these, TF-IDF of 2 to 5 characters within words; in Chinese, of 1 and 2 words; of ids,
    which have no characters worth counting, of 1 to 3 ids alone."""
    words, texts = features.words, [features.train, features.texts]
    if features.source.tokens == "spaces":
        train, rest = _tf_idf(features.corpus(corpus, words), [*words[:2]], (1, 3), **_IS_TOKENS)
        return train, rest
    if features.source.tokens == "characters":
        more = _tf_idf(features.corpus(corpus, words), [*words[:2]], (1, 2), **_IS_TOKENS)
    else:
        # Their frequencies are of the training rows alone: unlabelled text has millions of them.
        lower = [[text.lower() for text in part] for part in texts]
        more = _tf_idf(lower[0], lower, (2, 5), analyzer="char_wb")
    both = zip(features.matrices("ngrams", corpus), more, strict=True)
    train, rest = (sparse.hstack(pair).tocsr() for pair in both)
    return train, rest


def _lsa(features: Features, corpus: str) -> tuple[Any, Any]:
    """TF-IDF of words, reduced to 256 dimensions by an SVD of the corpus."""
    documents = features.corpus(corpus, features.words)
    vectorizer = TfidfVectorizer(
        min_df=2, sublinear_tf=True, lowercase=False, dtype=np.float32, **_IS_TOKENS
    )
    matrix = vectorizer.fit_transform(documents)
    svd = TruncatedSVD(min(LSA_SIZE, min(matrix.shape) - 1), n_iter=2, random_state=0).fit(matrix)
    train, rest = (
        normalize(svd.transform(vectorizer.transform(texts))) for texts in features.words[:2]
    )
    return train, rest


def _word_vectors(features: Features, corpus: str) -> tuple[Any, Any]:
    """The mean of word vectors, weighted by idf. A vector is a row of the SVD of the matrix of
    positive pointwise mutual information with neighbours within 5 words, the context distribution
    smoothed by 0.75 and the singular values by a square root (Levy, Goldberg & Dagan 2015)."""
    documents = features.corpus(corpus, features.words)
    counts = Counter(word for document in documents for word in document)
    names = [word for word, n in counts.most_common(30_000) if n >= MIN_COUNT]
    number = {word: i for i, word in enumerate(names)}
    gap = [-1] * WINDOW  # so that no window reaches into the next document
    stream = np.array(
        [i for words in documents for i in (*(number.get(w, -1) for w in words), *gap)]
    )
    size = len(names)
    together = sparse.csr_matrix((size, size), dtype=np.float32)
    for distance in range(1, WINDOW + 1):
        one, other = stream[:-distance], stream[distance:]
        real = (one >= 0) & (other >= 0)
        weight = np.ones(int(real.sum()), dtype=np.float32)
        together += sparse.csr_matrix((weight, (one[real], other[real])), shape=(size, size))
    pairs = (together + together.T).tocoo()
    of_word = np.asarray(pairs.sum(axis=1)).ravel()
    context = of_word**0.75
    row, column = pairs.coords
    information = np.log(pairs.data * context.sum() / (of_word[row] * context[column]))
    kept = information > 0
    matrix = sparse.csr_matrix(
        (information[kept], (row[kept], column[kept])), shape=(size, size), dtype=np.float32
    )
    svd = TruncatedSVD(min(LSA_SIZE, size - 1), n_iter=2, random_state=0)
    vectors = svd.fit_transform(matrix) / np.sqrt(np.maximum(svd.singular_values_, 1e-9))
    tf_idf = TfidfVectorizer(vocabulary=names, lowercase=False, **_IS_TOKENS).fit(documents)
    train, rest = (normalize(tf_idf.transform(texts) @ vectors) for texts in features.words[:2])
    return train, rest


def _frozen(features: Features, corpus: str) -> tuple[Any, Any]:
    """Vectors of a pretrained model that is not trained further."""
    from ownbert import Embedder

    embedder = Embedder(str(features.probe))
    return embedder.encode(features.train), embedder.encode(features.texts)


_VIEWS: dict[str, Callable[[Features, str], tuple[Any, Any]]] = {
    "ngrams": _ngrams,
    "with characters": _with_characters,
    "LSA": _lsa,
    "word vectors": _word_vectors,
    "frozen": _frozen,
}


def _used_columns(train: Any, rest: Any) -> tuple[Any, Any]:
    """A column that is empty in the training rows has weight 0: dropping it only saves time."""
    if not sparse.issparse(train):
        return train, rest
    used = np.flatnonzero(train.getnnz(axis=0))
    return train[:, used], rest[:, used]


def _class_scores(features: Features, model: Any, rest: Any) -> np.ndarray:
    """Scores (rows, C) in the order of the classes of the set; -inf for one without labels."""
    found = model.decision_function(rest)
    if found.ndim == 1:
        found = np.stack([-found / 2, found / 2], axis=1)
    scores = np.full((rest.shape[0], len(features.classes)), -np.inf)
    scores[:, [features.classes.index(label) for label in model.classes_]] = found
    return scores


def _linear(view: str, kind: str, features: Features, rows: np.ndarray) -> Iterator[Candidate]:
    labels = features.train_labels[rows]
    corpora = ["train"] if view == "frozen" else features.corpora
    counts = Counter(labels).values()
    # For macro-F1, where classes differ in size.
    weights = (None, "balanced") if max(counts) > 2 * min(counts) else (None,)
    for corpus in corpora:
        train, rest = features.matrices(view, corpus)
        train, rest = _used_columns(train[rows], rest)
        for c, weight in itertools.product(SVM_C if kind == "SVM" else LOGISTIC_C, weights):
            if kind == "SVM":
                model = LinearSVC(C=c, class_weight=weight, tol=1e-3, random_state=0)
            else:
                model = classifier(c, is_sparse=sparse.issparse(train), class_weight=weight)
            model.fit(train, labels)
            setting = f"{corpus} C={c:g}" + (f" {weight}" if weight else "")
            yield Candidate(setting, _class_scores(features, model, rest))


def _nb_svm(features: Features, rows: np.ndarray) -> Iterator[Candidate]:
    """Support vector machine on presence times the log-count ratio of naive Bayes, one class
    against the rest, weights interpolated with their mean size (Wang & Manning 2012)."""
    train, rest = features.matrices("ngrams", "train")
    train, rest = _used_columns(train[rows], rest)
    train, rest = (matrix.astype(bool).astype(np.float64) for matrix in (train, rest))
    labels = features.train_labels[rows]
    scores: dict[tuple[float, float], np.ndarray] = {
        key: np.full((rest.shape[0], len(features.classes)), -np.inf)
        for key in itertools.product(NB_SVM_C, NB_SVM_INTERPOLATION)
    }
    for column, label in enumerate(features.classes):
        own = labels == label
        if not own.any() or own.all():
            continue
        positive, negative = (1.0 + np.asarray(train[m].sum(axis=0)).ravel() for m in (own, ~own))
        ratio = np.log(positive / positive.sum()) - np.log(negative / negative.sum())
        scaled = (train @ sparse.diags(ratio)).tocsr()
        for c in NB_SVM_C:
            model = LinearSVC(C=c, tol=1e-3, random_state=0).fit(scaled, own)
            weights = model.coef_.ravel()
            for share in NB_SVM_INTERPOLATION:
                mixed = (share * weights + (1 - share) * np.abs(weights).mean()) * ratio
                scores[c, share][:, column] = rest @ mixed + model.intercept_
    for (c, share), found in scores.items():
        yield Candidate(f"C={c:g} interpolation={share:g}", found)


def _majority(features: Features, rows: np.ndarray) -> Iterator[Candidate]:
    counts = Counter(features.train_labels[rows])
    scores = np.array([[counts[label] for label in features.classes]], dtype=float)
    yield Candidate("", np.repeat(scores, len(features.labels), axis=0))


def _fasttext(features: Features, rows: np.ndarray) -> Iterator[Candidate]:
    """fastText (Joulin et al. 2017) on words, with 1 and 2-grams, if its package is installed."""
    import fasttext  # pyright: ignore[reportMissingImports]

    train, rest, _ = features.words
    number = {label: i for i, label in enumerate(features.classes)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        lines = [
            f"__label__{number[features.train_labels[row]]} {' '.join(train[row])}\n"
            for row in rows
        ]
        path.write_text("".join(lines), encoding="utf-8")
        for rate, epochs in itertools.product((0.1, 0.5, 1.0), (25, 100)):
            model = fasttext.train_supervised(
                str(path), lr=rate, epoch=epochs, wordNgrams=2, thread=1, seed=0, verbose=0
            )
            scores = np.full((len(rest), len(features.classes)), -np.inf)
            for row, words in enumerate(rest):
                # model.predict fails with NumPy 2; the object that it calls does not.
                for value, label in model.f.predict(f"{' '.join(words)}\n", -1, 0.0, "strict"):
                    scores[row, int(label.removeprefix("__label__"))] = np.log(value + 1e-9)
            yield Candidate(f"lr={rate:g} epochs={epochs}", scores)


LINEAR: dict[str, Callable[[Features, np.ndarray], Iterator[Candidate]]] = {
    "TF-IDF + LR": functools.partial(_linear, "ngrams", "LR"),
    "TF-IDF + SVM": functools.partial(_linear, "ngrams", "SVM"),
    "TF-IDF more + LR": functools.partial(_linear, "with characters", "LR"),
    "TF-IDF more + SVM": functools.partial(_linear, "with characters", "SVM"),
    "NB-SVM": _nb_svm,
    "LSA + LR": functools.partial(_linear, "LSA", "LR"),
    "word vectors + LR": functools.partial(_linear, "word vectors", "LR"),
}
BLEND = "geometric mean"
OTHERS: dict[str, Callable[[Features, np.ndarray], Iterator[Candidate]]] = {
    "majority": _majority,
    "fastText": _fasttext,
    "frozen + LR": functools.partial(_linear, "frozen", "LR"),
}
BASELINES = ("majority", *LINEAR, BLEND, "fastText", "frozen + LR")


def available(method: str, features: Features) -> bool:
    """Whether a method can run here: two need a package, the frozen vectors a model."""
    needed = {"fastText": "fasttext", "trainer": "accelerate"}
    if method in needed:
        return importlib.util.find_spec(needed[method]) is not None
    return method != "frozen + LR" or features.probe is not None


def run_baseline(
    method: str, features: Features, rows: Sequence[int], splits: Splits, known: dict[str, Result]
) -> Result:
    """Train a baseline on these training rows with every setting, choose on dev rows, and score.

    Args:
        method: one of BASELINES.
        features: of the set.
        rows: training rows whose labels are used.
        splits: dev and test rows.
        known: results of the same rows, which the geometric mean takes its members from and adds
            those that are missing to.
    """
    chosen_rows = np.asarray(rows)
    if method != BLEND:
        make = LINEAR.get(method) or OTHERS[method]
        return choose(features, list(make(features, chosen_rows)), splits)
    for name in LINEAR:
        if name not in known:
            known[name] = run_baseline(name, features, rows, splits, known)
    return blend(features, [known[name] for name in LINEAR], splits)


def choose(features: Features, candidates: Sequence[Candidate], splits: Splits) -> Result:
    """The test scores of the candidate with the best macro-F1 on dev, in each split."""
    picked = []
    for dev, _ in splits:
        quality = [_scores(features, each.scores, dev)[0] for each in candidates]
        picked.append(candidates[int(np.argmax(quality))])
    scores = tuple(each.scores for each in picked)
    return _result(features, scores, tuple(each.setting for each in picked), splits)


def blend(features: Features, members: Sequence[Result], splits: Splits) -> Result:
    """The geometric mean of the members' probabilities, each made from scores with the temperature
    that suits the dev rows best.

    The weights of the members are equal, or those with the lowest loss on dev (a logarithmic
    opinion pool, Heskes 1998): the better on dev.
    """
    number = {label: i for i, label in enumerate(features.classes)}
    wanted = np.array([number[label] for label in features.labels])
    parts = []
    for split, (dev, test) in enumerate(splits):
        logs = np.stack([_calibrated(m.chosen[split], wanted, dev) for m in members])
        weights = _pool_weights(logs[:, dev], wanted[dev])
        names = " ".join(f"{weight:.2f}" for weight in weights)
        candidates = [
            Candidate("equal weights", logs.mean(axis=0)),
            Candidate(f"weights {names}", np.tensordot(weights, logs, 1)),
        ]
        parts.append(choose(features, candidates, [(dev, test)]))
    return mean_result(parts)


def _pool_weights(logs: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Non-negative weights of the members (members, rows, C) with the lowest loss; it is convex."""
    rows = np.arange(len(wanted))

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        pooled = log_softmax(np.tensordot(weights, logs, 1), axis=1)
        expected = np.einsum("rc,mrc->mr", np.exp(pooled), logs)
        gradient = (expected - logs[:, rows, wanted]).mean(axis=1)
        return -pooled[rows, wanted].mean(), gradient

    start = np.full(len(logs), 1 / len(logs))
    bounds = [(0, None)] * len(logs)
    return minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B").x


def mean_result(parts: Sequence[Result]) -> Result:
    """The results of several splits as one."""
    means = (
        float(np.mean([getattr(part, name) for part in parts]))
        for name in ("macro_f1", "accuracy", "dev_macro_f1")
    )
    settings = tuple(setting for part in parts for setting in part.settings)
    return Result(*means, settings, tuple(scores for part in parts for scores in part.chosen))


def _calibrated(scores: np.ndarray, wanted: np.ndarray, dev: np.ndarray) -> np.ndarray:
    """Log probabilities, floored, with the temperature of the lowest loss on dev."""
    finite = np.where(np.isfinite(scores), scores, np.min(scores, initial=0, where=scores > -1e30))
    made = [np.maximum(log_softmax(finite * t, axis=1), -20) for t in TEMPERATURES]
    losses = [-log[dev, wanted[dev]].mean() for log in made]
    return made[int(np.argmin(losses))]


def _scores(features: Features, scores: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    predicted = np.array(features.classes)[scores[rows].argmax(axis=1)]
    wanted = features.labels[rows]
    f1 = f1_score(wanted, predicted, average="macro", zero_division=0)
    return float(f1), float(accuracy_score(wanted, predicted))


def _result(
    features: Features, scores: tuple[np.ndarray, ...], settings: tuple[str, ...], splits: Splits
) -> Result:
    each = list(zip(scores, splits, strict=True))
    test = np.mean([_scores(features, s, rows) for s, (_, rows) in each], axis=0)
    dev = np.mean([_scores(features, s, rows) for s, (rows, _) in each], axis=0)
    return Result(float(test[0]), float(test[1]), float(dev[0]), settings, scores)
