"""Topics as an HTML page: a table, and the words and most typical texts of each topic."""

import html

from ownbert.fitting.report.contents import cleaned
from ownbert.fitting.report.report_page import figures, framed, table, text_list
from ownbert.fitting.report.sections import TEXT, Section
from ownbert.language import translated
from ownbert.unlabelled.topic_list import Topic, Topics

_TEXT, _WORD = 320, 40  # characters
_WIDTH, _HEIGHT = 140, 18


def as_page(found: Topics) -> str:
    """The page as HTML."""
    texts, count = len(found.of_text), len(found.topics)
    rows = tuple(
        (
            f"{number}",
            cleaned(topic.name, 4 * _WORD),
            f"{topic.size:,}",
            f"{topic.size / texts:.1%}",
        )
        for number, topic in enumerate(found.topics, start=1)
    )
    names = tuple(map(translated, ("number", "words", "texts", "share")))
    lead = ""
    if found.periods:
        ends = f"{found.periods[0]} – {found.periods[-1]}"
        lead = f"<p>{html.escape(translated('Share of the texts of each period:'))} {ends}</p>"
    board = table(
        Section("topics", "", "", names, rows, names=2),
        [_line(found, topic) for topic in found.topics] if found.periods else None,
    )
    title = html.escape(translated("Topics"))
    parts = [f'<section id="topics"><h2>{title}</h2>{lead}{board}</section>']
    parts += [_topic(found, number, topic) for number, topic in enumerate(found.topics, start=1)]
    shown = [(f"{texts:,}", translated("texts")), (f"{count:,}", translated("topics"))]
    headline = translated(f"{texts:,} texts in {count:,} topics")
    keys = [(f"topic-{i}", cleaned(t.name, _WORD)) for i, t in enumerate(found.topics, start=1)]
    kind = html.escape(translated("topics"))
    return framed(kind, html.escape(headline), figures(shown), keys, "".join(parts))


def _topic(found: Topics, number: int, topic: Topic) -> str:
    chips = "".join(f"<li><bdi>{html.escape(cleaned(w, _WORD))}</bdi></li>" for w in topic.words)
    rows = tuple(
        (f"{row + 1:,}", f"{found.similarity[row]:.2f}", cleaned(text, _TEXT))
        for row, text in topic.typical
    )
    columns = tuple(map(translated, ("row", "similarity", TEXT)))
    texts = text_list(Section(f"topic-{number}", "", "", columns, rows))
    name = html.escape(cleaned(topic.name, 4 * _WORD))
    return (
        f'<section id="topic-{number}"><h2>{number}. <bdi>{name}</bdi></h2>'
        f'<ul class="chips">{chips}</ul>{texts}</section>'
    )


def _line(found: Topics, topic: Topic) -> str:
    """The share of a topic in each period, as a line from 0 to the maximum share."""
    totals = [
        max(1, sum(counts)) for counts in zip(*(t.over_time for t in found.topics), strict=True)
    ]
    shares = [number / total for number, total in zip(topic.over_time, totals, strict=True)]
    most, step = max(shares) or 1, (_WIDTH - 8) / max(1, len(shares) - 1)
    points = " ".join(
        f"{4 + i * step:.1f},{_HEIGHT - 2 - (_HEIGHT - 4) * share / most:.1f}"
        for i, share in enumerate(shares)
    )
    title = "; ".join(f"{n} {share:.1%}" for n, share in zip(found.periods, shares, strict=True))
    return (
        f'<svg class="score" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'role="img"><title>{title}</title><polyline class="fit" points="{points}"/></svg>'
    )
