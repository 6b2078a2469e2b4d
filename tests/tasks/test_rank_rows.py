"""What rows of vectors to be learnt say by their columns."""

from pathlib import Path

import pytest

from ownbert import InputError
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.embed import EmbeddingTask
from ownbert.tasks.rows import Row


def read(tmp_path: Path, text: str, columns: ColumnNames | None = None) -> list[Row]:
    (tmp_path / "rows.csv").write_text(text)
    return EmbeddingTask(columns=columns).read(tmp_path / "rows.csv")


def test_what_columns_say(tmp_path: Path):
    (row,) = read(tmp_path, "id,query,document\n1,a,b\n")
    assert (row.texts, row.target) == (("a", "b"), None)
    (row,) = read(tmp_path, "anchor,positive,negative\na,b,c\n")
    assert (row.texts, row.target) == (("a", "b", "c"), None)
    (row,) = read(tmp_path, "anchor,positive,negative_1,negative_2\na,b,c,d\n")
    assert (row.texts, row.target) == (("a", "b", "c", "d"), None)
    (row,) = read(tmp_path, "anchor,positive,negative_1\na,b,c\n")
    assert row.texts == ("a", "b", "c")
    (row,) = read(tmp_path, "score,sentence1,sentence2,genre\n2.5,a,b,news\n")
    assert (row.texts, row.target) == (("a", "b"), 2.5)
    (row,) = read(tmp_path, "x,y,z\na,b,3\n", ColumnNames("y", "x", "z"))
    assert (row.texts, row.target) == (("b", "a"), 3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "text,score\na,1\n",
            "rows.csv has one text per row, but two are needed; name",
        ),
        ("text1,text2,score\na,b,1\na,b,much\n", "rows.csv, line 3: 'score' has 'much'; a score"),
        ("text1,text2,score\na,b,nan\n", "rows.csv, line 2: 'score' has 'nan'"),
        ("text1,text2,score\na,b,\n", "rows.csv, line 2: 'score' has ''"),
        ("text1,text2\n", "rows.csv has no rows"),
        ("anchor,positive,negative,score\na,b,c,1\n", "both a column of scores, 'score', and one"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_a_real_file(shared_data: Path):
    task = EmbeddingTask()
    for name, count in (("train", 5749), ("dev", 1500), ("test", 1379)):
        rows = task.read(shared_data / "stsb" / f"{name}.tsv")
        assert len(rows) == count
        if name == "train":
            task.learn(rows, "train.tsv")
            assert task.scale == (0.0, 5.0)
            assert task.metrics == ("spearman", "pearson")
        task.check(rows, name, "the training data")
    assert rows[0].texts == ("A girl is styling her hair.", "A girl is brushing her hair.")
    assert rows[0].target == 2.5
