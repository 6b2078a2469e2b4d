"""Topics: the classes of easy texts are found, named, counted over time and shown on a page."""

import json
from pathlib import Path

import numpy as np
import pytest

import ownbert
from conftest import TOPICS
from ownbert.unlabelled.index_files import WordCounts
from ownbert.unlabelled.topics import _date, _periods, _texts_with_words, _weights
from support.browser import CHROMIUM, in_browser
from support.cli import refusal, run_cli

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def dated(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training rows with a date; green ones are of 2021 alone."""
    folder = tmp_path_factory.mktemp("dated")
    rows = [line.split(",", 1) for line in (topics / "train.csv").read_text().splitlines()[1:]]
    with (folder / "rows.jsonl").open("w") as file:
        for number, (label, text) in enumerate(rows):
            year = 2021 if label == "green" else 2020 + number % 3
            file.write(json.dumps({"text": text, "label": label, "day": f"{year}-05-01"}) + "\n")
    return folder / "rows.jsonl"


def test_topics_are_the_classes_of_easy_texts(pretrained: Path, dated: Path):
    found = ownbert.topics(pretrained, dated, count=3)
    labels = [json.loads(line)["label"] for line in dated.read_text().splitlines()]
    classes = np.array([TOPICS.index(label) for label in labels])
    with pytest.raises(ownbert.InputError, match=r"\d+ texts for 9,999 topics; lower count"):
        ownbert.topics(pretrained, dated, count=9999)
    right = sum(np.bincount(classes[found.of_text == t]).max() for t in range(3))
    assert right > 0.6 * len(classes)  # a third is chance
    assert [topic.size for topic in found.topics] == np.bincount(found.of_text).tolist()
    for number, topic in enumerate(found.topics):
        rows = [row for row, _ in topic.typical]
        assert set(found.of_text[rows]) == {number}
        assert found.similarity[rows[0]] == found.similarity[found.of_text == number].max()


def test_words_of_a_topic_are_those_that_others_lack(tmp_path: Path):
    counted = WordCounts(tmp_path / "counts")
    counted.add(["the ship sails .", "the ship sinks .", "the album sells .", "the album plays ."])
    with_word = _texts_with_words(counted, np.array([0, 0, 1, 1]), range(2))
    weights = np.stack([_weights(with_word[number], with_word.sum(0), 2, 4) for number in (0, 1)])
    words = list(counted.words)
    assert [words[i] for i in weights.argmax(1)] == ["ship", "album"]
    assert not weights[:, [words.index("the"), words.index(".")]].any()


def test_the_number_of_topics_is_chosen_and_runs_agree(pretrained: Path, dated: Path):
    found, again = (ownbert.topics(pretrained, dated) for _ in range(2))
    assert len(found.topics) >= 2
    assert found.of_text.tolist() == again.of_text.tolist()


def test_words_are_counted_for_few_topics_at_a_time(
    pretrained: Path, dated: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = ownbert.topics(pretrained, dated, count=3)
    monkeypatch.setattr("ownbert.unlabelled.topics._MOST_COUNTS", 1)
    assert ownbert.topics(pretrained, dated, count=3).topics == whole.topics


@pytest.mark.parametrize(("count", "most"), [(3, 2), (9, 3), (30, 5), (60, 5)])
def test_few_texts_have_few_topics_and_each_has_a_name(
    count: int, most: int, pretrained: Path, dated: Path
):
    texts = [json.loads(line)["text"] for line in dated.read_text().splitlines()][:count]
    found = ownbert.topics(pretrained, texts)
    assert 1 <= len(found.topics) <= most
    assert all(topic.name.strip(" ,") for topic in found.topics)
    without_words = ownbert.topics(pretrained, ["", "!", "?? !", " ", "- - -"], count=2)
    assert all(topic.name for topic in without_words.topics)


def test_words_of_one_text_name_a_topic_that_has_no_others(tmp_path: Path):
    counted = WordCounts(tmp_path / "counts")
    counted.add(["the ship sails", "the album sells", "the album plays"])
    with_word = _texts_with_words(counted, np.array([0, 1, 1]), range(2))
    words = np.array(list(counted.words))
    assert set(words[_weights(with_word[0], with_word.sum(0), 1, 3) > 0]) == {"ship", "sails"}
    assert set(words[_weights(with_word[1], with_word.sum(0), 2, 3) > 0]) == {"album"}


def test_topics_are_written_and_shown(pretrained: Path, dated: Path, tmp_path: Path):
    files = {name: tmp_path / f"topics.{name}" for name in ("jsonl", "html")}
    options = ("--count", "3", "--date-column", "day")
    outputs = ("-o", files["jsonl"], "--html", files["html"])
    done = run_cli("topics", pretrained, dated, *options, *outputs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == [f"saved {path}" for path in files.values()]
    rows = [json.loads(line) for line in files["jsonl"].read_text().splitlines()]
    assert [row["row"] for row in rows] == [*range(1, 61)]
    assert {row["topic"] for row in rows} == {1, 2, 3}
    page = files["html"].read_text()
    assert "<title>2020-05-01 " in page
    assert "2022-05-01" in page
    if CHROMIUM is None:
        pytest.skip("needs Chromium for the rest")
    seen = in_browser(
        page,
        """return {sections: document.querySelectorAll("section").length,
          lines: document.querySelectorAll("#topics polyline.fit").length,
          links: [...document.querySelectorAll("nav a")].every(
            a => document.querySelector(a.getAttribute("href")))};""",
        tmp_path / "profile",
    )
    assert seen == {"sections": 4, "lines": 3, "links": True}


@pytest.mark.parametrize(
    ("dates", "periods"),
    [
        (["2024-05-31", "2024-05-30T10:00", None], ["2024-05-30", "2024-05-31"]),
        ([f"{year}-01-01" for year in range(1950, 2000)], [f"{y}" for y in range(1950, 2000)]),
        (["2024-05", "2023-11-02", "20240501"], ["2023-11", "2024-05"]),
        ([2020, 2021], ["2020", "2021"]),
        (["2024/05/31", "2024.05.30", "2024年05月29日"], [f"2024-05-{d}" for d in (29, 30, 31)]),
    ],
)
def test_periods_are_as_fine_as_there_are_few(dates: list, periods: list[str]):
    found = _periods([_date(date, "day") for date in dates])
    assert sorted({each for each in found if each}) == periods


@pytest.mark.parametrize(
    "date", ["soon", "2024-5-31", "2024/5/3", "2024年5月3日", "2024-13-01", "1999-2000"]
)
def test_what_is_no_date_is_not_cut_to_one(date: str):
    with pytest.raises(ownbert.InputError, match="no date such as"):
        _date(date, "day")


def test_mistakes_leave_nothing(pretrained: Path, dated: Path, tmp_path: Path):
    (tmp_path / "two.csv").write_text("text,day\nw1,2020\nw2,soon\n")
    before = sorted(tmp_path.rglob("*"))
    output = tmp_path / "new" / "topics.jsonl"
    for wrong in (
        ("topics", pretrained, tmp_path / "none.csv", "-o", output),
        ("topics", pretrained, tmp_path / "two.csv", "-o", output),
        ("topics", pretrained, tmp_path / "two.csv", "--date-column", "day", "-o", output),
        ("topics", pretrained, tmp_path / "two.csv", "--date-column", "date", "-o", output),
        ("topics", pretrained, dated, "-o", tmp_path / "new" / "topics.png"),
        ("topics", pretrained, dated, "--count", "1"),
        ("topics", tmp_path / "none", dated, "-o", output),
    ):
        refusal(*wrong)
        assert sorted(tmp_path.rglob("*")) == before, wrong
