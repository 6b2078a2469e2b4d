"""What ``fit`` refuses, of texts and answers in memory."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ownbert import InputError, OwnBertClassifier, OwnBertRegressor
from ownbert.finetuning.arrays import labels_of, texts_of


@pytest.mark.parametrize(
    ("X", "y", "said"),
    [
        (["a", "b", "c"], ["x", "y"], "X has 3 texts, but y has 2 values"),
        (["a", "b"], [], "X has 2 texts, but y has 0 values"),
        ([], [], "X is empty"),
        ("a text", ["x"], "X is a single text"),
        (["a", None], ["x", "y"], r"X\[1\] contains None, which is not a text"),
        (["a", float("nan")], ["x", "y"], r"X\[1\] contains nan, which is not a text"),
        (np.zeros((2, 2)), ["x", "y"], r"X\[0\] contains .*0.0.*, which is not a text"),
        (np.asarray([["a"] * 3] * 2), ["x", "y"], "X has 3 columns"),
        ([("a", "b", "c")], ["x"], r"X\[0\] is a tuple of 3"),
        (["a", ("b", "c")], ["x", "y"], r"X\[1\] and X\[0\] must both be"),
        (["a", "b"], ["x", None], r"y\[1\] is None"),
        (["a", "b"], [1.0, np.nan], r"y\[1\] is nan"),
        (["a", "b"], ["x", np.nan], r"y\[1\] is nan"),
        (["a", "b"], np.asarray(["x", np.nan], dtype=object), r"y\[1\] is nan"),
        (["a", "b"], None, "y is None"),
        (["a", "b"], ["x", " "], r"y\[1\]: the label is empty"),
        (["a", "b"], ["x", "x"], "y has one class only, 'x'"),
        (["a", "b", "c"], ["x", "x ", "y"], "two labels that both become 'x' as text"),
        (["a", "b"], [0.5, 1.5], "Unknown label type: continuous"),
        (["a", "b"], [["x", "y"], ["y", "x"]], "y has several labels for each text"),
    ],
)
def test_what_cannot_be_learnt_is_refused(X, y, said: str, pretrained: Path):
    with pytest.raises(ValueError, match=said):
        OwnBertClassifier(pretrained).fit(X, y)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([1.0, np.nan], r"y\[1\] is nan"),
        ([[1.0, 2.0], [2.0, 1e39]], r"y\[1, 1\] is 1e\+39"),
        (["high", "low"], "y must be numbers"),
        ([2, 2], "y is the same number for all texts"),
        ([[1, 2], [2, 2]], "y is the same number for all texts"),
        ([1, 2, 3], "X has 2 texts, but y has 3 values"),
        (None, "y is None"),
        ([], "y must be numbers"),
    ],
)
def test_numbers_that_cannot_be_learnt_are_refused(y, said: str, pretrained: Path):
    with pytest.raises(InputError, match=said):
        OwnBertRegressor(pretrained).fit(["a", "b"], y)


def test_a_mapping_of_columns_has_a_text_in_each_row():
    assert texts_of({"text": ["a", "b"]}) == [("a",), ("b",)]
    assert texts_of({"text": ["a", "b"], "text_pair": ("c", "d")}) == [("a", "c"), ("b", "d")]
    with pytest.raises(InputError, match="X has a column 'label'"):
        texts_of({"text": ["a", "b"], "label": ["x", "y"]})


def test_texts_and_labels_may_be_of_arrow_and_in_lists_of_one():
    assert texts_of(pa.array(["a", "b"])) == [("a",), ("b",)]
    assert texts_of(pa.chunked_array([["a"], ["b"]])) == [("a",), ("b",)]
    assert labels_of([["x"], ["y"]]) == ["x", "y"]


def test_weights_are_of_classes_with_equal_values():
    for classes in ({0.0: "0.0", 1.0: "1.0"}, {False: "false", True: "true"}):
        weights = OwnBertClassifier(class_weight={0: 1, 1: 2})._weights(classes)
        assert json.loads(weights) == dict(zip(classes.values(), (1, 2), strict=True))


def test_a_series_of_lists_is_read_like_a_list():
    pandas = pytest.importorskip("pandas")
    assert labels_of(pandas.Series([["x"], ["y"]])) == ["x", "y"]
    with pytest.raises(InputError, match="y has several labels for each text"):
        labels_of(pandas.Series([["x", "y"], ["y"], []]))


def test_labels_of_pandas_keep_their_type():
    pandas = pytest.importorskip("pandas")
    for values, dtype, kind in (
        ([1, 0], "Int64", np.int64),
        ([True, False], "boolean", np.bool_),
        ([1, 0], "int64[pyarrow]", np.int64),
    ):
        found = labels_of(pandas.Series(values, dtype=dtype, index=[7, 9]))
        assert found.dtype == kind
        assert found.tolist() == values
    missing = pandas.Series([1, None], dtype="Int64")
    assert labels_of(missing) is missing  # refused by its row


def test_missing_texts_of_pandas_are_no_labels(pretrained: Path):
    pandas = pytest.importorskip("pandas")
    for y in (pandas.Series(["x", None], dtype="string"), [pandas.NaT, "x"], ["x", pandas.NA]):
        with pytest.raises(InputError, match=r"y\[\d\] is (<NA>|NaT|nan); every text needs"):
            OwnBertClassifier(pretrained).fit(["a", "b"], y)


def test_a_score_takes_the_labels_of_fit():
    classifier = OwnBertClassifier()
    classifier.classes_ = np.arange(3)
    classifier.predict_proba = lambda X: np.eye(3)[[0, 1, 1]]
    assert classifier.score(["a", "b", "c"], np.eye(3)) == pytest.approx(2 / 3)
    assert classifier.score(["a", "b", "c"], [0, 2, 1]) == pytest.approx(2 / 3)


def test_columns_of_frames_are_texts_alone():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"one": ["a", "b"], "two": ["c", "d"], "label": [1, 0]}, index=[7, 9])
    assert texts_of(frame[["one"]]) == [("a",), ("b",)]
    assert texts_of(frame[["one", "two"]]) == [("a", "c"), ("b", "d")]
    with pytest.raises(InputError, match="X has a column 'label', which is named like labels"):
        texts_of(frame[["one", "label"]])
