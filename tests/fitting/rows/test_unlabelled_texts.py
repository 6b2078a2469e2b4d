"""Which unlabelled texts fit learns from."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ownbert.corpus.documents import read_documents
from ownbert.fitting.fit import preview_fit
from ownbert.fitting.rows.unlabelled_texts import Corpus, UnlabelledTexts, some_texts


def _texts(words: str, count: int, seed: int, length: int = 12) -> list[str]:
    """Distinct texts of random words whose names start with ``words``, and of common words."""
    drawn = random.Random(seed)
    names = [f"{words}{n}" for n in range(40)] + [f"common{n}" for n in range(20)]
    return [" ".join(drawn.choices(names, k=length)) for _ in range(count)]


OWN, FOREIGN = _texts("film", 300, 1), _texts("town", 700, 2, length=200)


def _read(texts: list[str], labelled: list[str], **limits: int) -> UnlabelledTexts:
    given = {"characters": 10_000_000, "fewest": 0, **limits}
    return UnlabelledTexts.read(texts, labelled, set(labelled), "words", **given)


@pytest.mark.parametrize("labelled", [30, 100])
def test_texts_of_another_kind_are_told_apart_wherever_they_stand(labelled: int) -> None:
    found = _read([*FOREIGN, *OWN], _texts("film", labelled, 3))
    assert len(set(found.similar) & set(OWN)) > 0.9 * len(OWN)
    assert len(set(found.similar) - set(OWN)) < 0.1 * len(FOREIGN)
    assert sorted([*found.similar, *found.others]) == sorted([*FOREIGN, *OWN])


def test_texts_of_one_kind_stay_together() -> None:
    found = _read(OWN, _texts("film", 100, 3))
    assert list(found.similar) == OWN
    assert not found.others


def test_long_texts_of_one_kind_are_not_another_kind() -> None:
    found = _read(_texts("film", 200, 5, length=300), _texts("film", 100, 3))
    assert not found.others


def test_few_labelled_texts_restrict_nothing() -> None:
    assert not _read([*FOREIGN, *OWN], _texts("film", 10, 3)).others


def test_the_most_similar_ones_fill_up_to_the_minimum() -> None:
    labelled, fewest = _texts("film", 100, 3), sum(map(len, OWN)) + 10_000
    found = _read([*FOREIGN, *OWN], labelled, fewest=fewest)
    assert set(OWN) <= set(found.similar)
    assert found.others
    assert sum(map(len, [*labelled, *found.similar])) >= fewest


def test_labelled_and_repeated_texts_are_left_out() -> None:
    labelled = _texts("film", 50, 3)
    copies = [f"{text.upper()} !" for text in labelled]
    found = _read([*labelled, *copies, *OWN, *OWN, " "], labelled)
    assert list(found.similar) == OWN


def test_some_texts_come_from_everywhere_and_similar_ones_first() -> None:
    texts = [f"text {n:03d}" for n in range(400)]
    some = some_texts(texts, 800, 400, seed=0)
    assert len(some) == 100
    assert max(some) > "text 300"
    assert max(some[:20]) > "text 200"
    assert sorted(some_texts(texts, 10_000, 400, seed=0)) == texts
    found = UnlabelledTexts(["a" * 10] * 3, ["b" * 10] * 3).some(50, 10, seed=0)
    assert [*map(len, found)] == [3, 2]
    assert sum(map(len, UnlabelledTexts(texts, texts).some(800, 400, seed=0))) == 100


def test_a_limit_on_characters_reads_of_every_file(tmp_path: Path) -> None:
    sizes = {"large": 2000, "small": 20, "other": 2000, "empty": 0}
    for name, count in sizes.items():
        (tmp_path / f"{name}.txt").write_text(f"{name} {'x' * 40}\n" * count)
    files = [tmp_path / f"{name}.txt" for name in sizes]

    def first_words(characters: int | None) -> Iterator[str]:
        for document in read_documents(files, characters=characters):
            yield document.pieces[0].split()[0]

    found = list(first_words(20_000))
    assert found.count("small") == 20
    assert 150 < found.count("large") < 300
    assert abs(found.count("large") - found.count("other")) < 3
    assert len(list(first_words(None))) == len(list(first_words(10**9))) == 4020


def test_a_restricted_corpus_is_pretrained_on_its_similar_texts_alone(tmp_path: Path) -> None:
    file, some = tmp_path / "texts.txt", tmp_path / "some.txt"
    file.write_text("\n".join([*FOREIGN, *OWN]))
    whole = Corpus([str(file)], None, OWN)
    assert whole.files_up_to(10**9, some, 0) == [str(file)]
    restricted = Corpus([str(file)], None, OWN, restricted=True)
    assert restricted.files_up_to(10**9, some, 0) == [some]
    assert sorted(some.read_text().splitlines()) == sorted(OWN)
    # A corpus beyond the limit gives texts from everywhere, not its first ones.
    assert whole.files_up_to(5_000, some, 0) == [some]
    written = some.read_text().splitlines()
    assert sum(map(len, written)) <= 5_000
    assert max(map(OWN.index, written)) > 200


def test_a_preview_says_how_many_texts_the_network_learns_from() -> None:
    labels = ["a", "b"] * 50
    rows = {"text": _texts("film", 100, 3), "label": labels}
    own = _texts("film", 2000, 1)
    lines = preview_fit(rows, unlabelled=[*FOREIGN, *own], minutes=1).splitlines()
    said = [line for line in lines if line.startswith("the network learns from the ")]
    assert len(said) == 1
    assert "unlabelled texts that are most like the labelled ones" in said[0]
    assert 1900 < int(said[0].split()[5].replace(",", "")) < 2100
    assert "the network learns" not in preview_fit(rows, unlabelled=own, minutes=1)


def test_a_preview_says_what_the_unlabelled_texts_are_good_for() -> None:
    texts, labels = _texts("film", 100, 3), ["a", "b"] * 50
    rows = {"text": texts, "label": labels}
    said = preview_fit(rows, unlabelled=_texts("town", 1000, 2, length=40), minutes=1)
    assert "warning: only " in said
    assert "of the 1,000 unlabelled texts are like the labelled ones" in said
    assert "the unlabelled texts are all labelled or test texts too" in preview_fit(
        rows, unlabelled=texts, minutes=1
    )
    pairs = {"text_a": texts, "text_b": texts[::-1], "label": labels}
    said = preview_fit(pairs, unlabelled=OWN, minutes=1)
    assert "; 300 unlabelled texts; " in said
    assert "the rows are pairs of texts: unlabelled texts are only used for pretraining" in said
    # More than there is time for.
    said = preview_fit(rows, unlabelled=_texts("film", 4000, 1, length=80), minutes=0.01)
    assert "; 4,000 unlabelled texts; " in said
    assert "linear models learn from " in said
