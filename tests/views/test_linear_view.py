"""Linear models on views: they learn, agree with scikit-learn, and are the same after loading."""

import random
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from ownbert.corpus.sparse import sparse
from ownbert.exceptions import InputError
from ownbert.inspect.explain.blend_words import contributions
from ownbert.views import LINEAR
from ownbert.views.blending import from_scores
from ownbert.views.linear_models import LinearView, Targets, fit_linear, log_softmax
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts


def topics(seed: int, texts: int) -> tuple[list[tuple[str]], np.ndarray]:
    """Texts of three topics: half of the words are the topic's own."""
    rng, found, labels = random.Random(seed), [], []
    for i in range(texts):
        topic = i % 3
        words = [
            f"t{topic}x{rng.randint(0, 15)}" if rng.random() < 0.4 else f"w{rng.randint(0, 40)}"
            for _ in range(rng.randint(8, 20))
        ]
        found.append((" ".join(words),))
        labels.append(topic)
    return found, np.asarray(labels)


def made(name: str, task: str = "classify") -> tuple[LinearView, Texts, np.ndarray]:
    """A model fitted on 90 texts, and 90 others with their topics."""
    train, labels = topics(1, 90)
    test, truth = topics(2, 90)
    other, _ = topics(3, 120)
    labelled = Texts(train, "words")
    view = VIEWS[name].fit(labelled, Texts(other, "words"))
    values = {
        "classify": labels,
        "multilabel": np.eye(3, dtype=np.float32)[labels],
        "regress": labels[:, None].astype(float),
    }[task]
    targets = Targets(task, values, 1 if task == "regress" else 3)
    model = fit_linear(view.features(labelled), targets, 10.0, naive_bayes=name == "nb")
    return LinearView(view, model, "words"), Texts(test, "words"), truth


@pytest.mark.parametrize("name", list(VIEWS))
def test_each_view_learns_and_is_the_same_after_loading(name: str, tmp_path: Path):
    fitted, test, truth = made(name)
    scores = fitted.scores(test.rows)
    assert (scores.argmax(1) == truth).mean() > 0.85
    np.testing.assert_allclose(np.exp(scores).sum(1), 1, atol=1e-6)
    fitted.save(tmp_path)
    again = LinearView.load(tmp_path).scores(test.rows)
    np.testing.assert_allclose(again, scores, atol=1e-6)


def test_in_chinese_the_words_of_lsa_are_pairs_of_characters():
    texts = Texts([("深陨坑 X1",), ("月",)], "chinese")
    assert texts.tokens == [["深", "陨", "坑", "x1"], ["月"]]
    assert texts.words == [["深陨", "陨坑", "坑x1"], ["月"]]
    assert Texts([("a b",)], "words").words == [["a", "b"]]


def test_any_number_of_labels_are_logits():
    fitted, test, truth = made("tfidf", "multilabel")
    logits = fitted.scores(test.rows)
    assert ((logits > 0) == np.eye(3, dtype=bool)[truth]).mean() > 0.9


def test_numbers_are_regressed():
    fitted, test, truth = made("lsa", "regress")
    found = fitted.scores(test.rows)[:, 0]
    assert np.corrcoef(found, truth)[0, 1] > 0.8


def test_tfidf_is_that_of_scikit_learn():
    train, _ = topics(1, 60)
    test, _ = topics(2, 30)
    theirs = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    theirs.fit(text for (text,) in train)
    view = VIEWS["tfidf"].fit(Texts(train, "words"), Texts([], "words"))
    ours = view.features(Texts(test, "words")).toarray()
    expected = theirs.transform(text for (text,) in test).toarray()
    assert ours.shape == expected.shape
    # The columns are in another order; all products of texts are the same.
    np.testing.assert_allclose(ours @ ours.T, expected @ expected.T, atol=1e-5)


def test_a_label_without_rows_is_never_likely():
    train, labels = topics(1, 60)
    texts = Texts(train, "words")
    view = VIEWS["lsa"].fit(texts, Texts([], "words"))
    for features in (view.features(texts), VIEWS["tfidf"].fit(texts, texts).features(texts)):
        model = fit_linear(features, Targets("classify", labels, 4), 1.0)
        assert model.scores(features).argmax(1).max() < 3


def test_dropped_features_do_not_count_in_the_ratios_of_naive_bayes():
    """``fit`` sets the entries of features that are rare in a fold to 0."""
    features = sparse.csr_array(np.random.default_rng(0).random((40, 30), np.float32))
    features.data[features.data < 0.7] = 0
    targets = Targets("classify", np.arange(40) % 2, 2)
    kept, without = (
        fit_linear(each, targets, 1.0, naive_bayes=True)
        for each in (features, sparse.csr_array(features.toarray()))
    )
    np.testing.assert_allclose(kept.weights, without.weights, atol=1e-6)


def test_empty_and_unknown_texts_have_scores():
    fitted, _, _ = made("lsa")
    assert np.isfinite(fitted.scores([("",), ("nothing known",)])).all()


def test_log_softmax_bounds_what_is_impossible():
    found = log_softmax(np.asarray([[0.0, -1000.0]]))
    np.testing.assert_allclose(found, [[0.0, -30.0]])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / f"{LINEAR}.json").write_text('{"format": 9}'),
            "was written by another version",
        ),
        (
            lambda folder: (folder / f"{LINEAR}.safetensors").write_bytes(b"damaged"),
            "cannot be read",
        ),
        (lambda folder: (folder / f"{LINEAR}.safetensors").unlink(), "cannot be read"),
    ],
)
def test_a_damaged_folder_is_one_line(damage, message: str, tmp_path: Path):
    fitted, _, _ = made("tfidf")
    fitted.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=message):
        LinearView.load(tmp_path)


@pytest.mark.parametrize("kind", ["words", "ids"])
def test_zero_bytes_in_texts_do_not_change_saved_words(kind: str, tmp_path: Path):
    texts = Texts([(f"a\0b {word} \0 c",) for word in ("one", "two") * 4], kind)
    view = VIEWS["tfidf"].fit(texts, Texts([], kind))
    targets = Targets("classify", np.asarray([0, 1] * 4), 2)
    fitted = LinearView(view, fit_linear(view.features(texts), targets, 10.0), kind)
    fitted.save(tmp_path)
    again = LinearView.load(tmp_path).scores(texts.rows)
    np.testing.assert_allclose(again, fitted.scores(texts.rows), atol=1e-6)


@pytest.mark.parametrize("name", list(VIEWS))
@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
def test_without_features_the_answer_is_constant(name: str, task: str, tmp_path: Path):
    texts = Texts([("",)] * 4, "words")
    values = {
        "classify": np.asarray([0, 0, 0, 1]),
        "multilabel": np.asarray([[1, 0], [1, 0], [1, 0], [0, 1]], dtype=np.float32),
        "regress": np.asarray([[3.0, 1.0]] * 4),
    }[task]
    view = VIEWS[name].fit(texts, Texts([], "words"))
    model = fit_linear(view.features(texts), Targets(task, values, 2), 10.0)
    LinearView(view, model, "words").save(tmp_path)
    (scores,) = LinearView.load(tmp_path).scores([("other words",)])
    assert scores[0] > scores[1]


@pytest.mark.parametrize("name", ["tfidf", "nb", "lsa"])
@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
def test_texts_without_a_known_word_have_the_prior(name: str, task: str, tmp_path: Path):
    """The bias of a model of separable rows is far from it, and weights of a blend multiply it."""
    texts, labels = topics(1, 90)
    texts, labels = [*texts[0::3], *texts[1:12:3]], np.asarray([0] * 30 + [1] * 4)
    values = {
        "classify": labels,
        "multilabel": np.eye(2, dtype=np.float32)[labels],
        "regress": labels[:, None].astype(float),
    }[task]
    labelled = Texts(texts, "words")
    view = VIEWS[name].fit(labelled, Texts([], "words"))
    targets = Targets(task, values, 1 if task == "regress" else 2)
    model = fit_linear(view.features(labelled), targets, 10.0, naive_bayes=name == "nb")
    LinearView(view, model, "words").save(tmp_path)
    scores = LinearView.load(tmp_path).scores([("hello",), ("",), texts[0]])
    assert model.knows_nothing(scores).tolist() == [True, True, False]
    share = from_scores(task, scores)[0, -1]
    assert share == pytest.approx(4 / 34, abs=0.03)


@pytest.mark.parametrize("name", ["tfidf", "characters", "lsa"])
def test_both_ways_of_writing_accents_give_the_same_features(name: str):
    rows = [(f"ñandu g̃uahẽ {word}, Ñandu é.",) for word in ("ára", "óga", "ẹ́")] * 2
    nfc, nfd = ([(normalize(form, row[0]),) for row in rows] for form in ("NFC", "NFD"))
    kind = text_kind(row[0] for row in nfc)
    view = VIEWS[name].fit(Texts(nfc, kind), Texts([], kind))
    one, two = (sparse.csr_array(view.features(Texts(form, kind))).todense() for form in (nfc, nfd))
    np.testing.assert_array_equal(one, two)
    for text in nfc[0][0], nfd[0][0]:
        weights = np.random.default_rng(0).normal(size=one.shape[1])
        shares = contributions(view, (text,), kind, weights)[0]
        assert shares.sum() == pytest.approx(one[0] @ weights, rel=1e-4)
