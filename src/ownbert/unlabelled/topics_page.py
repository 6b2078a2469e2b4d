"""Topics as an HTML page: a table, and the words and most typical texts of each topic."""

from ownbert.exceptions import percent
from ownbert.fitting.report.charts import Chart
from ownbert.fitting.report.sections import TEXT, Section
from ownbert.language import translated
from ownbert.pages import cleaned, page
from ownbert.unlabelled.topic_list import Topic, Topics

_TEXT, _WORD = 320, 40  # characters
_WIDTH, _HEIGHT = 140, 18  # pixels of a curve


def as_page(topics: Topics) -> str:
    """The page as HTML."""
    texts, count = len(topics.of_text), len(topics.topics)
    names = [cleaned(topic.name, 4 * _WORD) for topic in topics.topics]
    rows = tuple(
        (f"{number}", name, f"{topic.size:,}", f"{percent(topic.size / texts)}")
        for number, (topic, name) in enumerate(zip(topics.topics, names, strict=True), start=1)
    )
    columns = tuple(map(translated, ("number", "words", "texts", "share")))
    return page(
        "unlabelled/topics.html",
        kind=translated("topics"),
        headline=translated(f"{texts:,} texts in {count:,} topics"),
        figures=[(f"{texts:,}", translated("texts")), (f"{count:,}", translated("topics"))],
        keys=[(f"topic-{i}", cleaned(t.name, _WORD)) for i, t in enumerate(topics.topics, start=1)],
        periods=topics.periods,
        board=Section("topics", "", "", columns, rows, names=2),
        bars=[_line(topics, topic) for topic in topics.topics] if topics.periods else None,
        topics=[
            (name, [cleaned(word, _WORD) for word in topic.words], _typical(topics, number, topic))
            for number, (topic, name) in enumerate(zip(topics.topics, names, strict=True), start=1)
        ],
    )


def _typical(topics: Topics, number: int, topic: Topic) -> Section:
    """The most typical texts of a topic."""
    rows = tuple(
        (f"{row + 1:,}", f"{topics.similarity[row]:.2f}", cleaned(text, _TEXT))
        for row, text in topic.typical
    )
    columns = tuple(map(translated, ("row", "similarity", TEXT)))
    return Section(f"topic-{number}", "", "", columns, rows)


def _line(topics: Topics, topic: Topic) -> Chart:
    """The share of a topic in each period, as a line from 0 to the maximum share."""
    totals = [
        max(1, sum(counts)) for counts in zip(*(t.over_time for t in topics.topics), strict=True)
    ]
    shares = [number / total for number, total in zip(topic.over_time, totals, strict=True)]
    most, step = max(shares) or 1, (_WIDTH - 8) / max(1, len(shares) - 1)
    points = " ".join(
        f"{4 + i * step:.1f},{_HEIGHT - 2 - (_HEIGHT - 4) * share / most:.1f}"
        for i, share in enumerate(shares)
    )
    title = "; ".join(
        f"{n} {percent(share)}" for n, share in zip(topics.periods, shares, strict=True)
    )
    return Chart(title, lines=[("fit", points)])
