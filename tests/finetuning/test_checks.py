"""Labelled rows that are probably mistakes, found in small tables and against plain loops."""

import random
from collections import Counter

from ownbert.finetuning.row_checks import LabelledSplit, check_rows, label_counts
from ownbert.tasks.rows import Row, shortened


def part(name: str, *rows: tuple, source: str = "", **more) -> LabelledSplit:
    """Rows of (texts, target), from line 2 on."""
    made = [
        Row(line, texts if isinstance(texts, tuple) else (texts,), target)
        for line, (texts, target) in enumerate(rows, start=2)
    ]
    return LabelledSplit(name, made, source, **more)


def found(*parts: LabelledSplit) -> dict[str, tuple[int, str]]:
    findings = check_rows(*parts)
    assert all("\n" not in f.line for f in findings)
    return {f.kind: (f.count, f.line) for f in findings}


def test_clean_rows_give_nothing():
    train = part("training", ("a b", "x"), ("a c", "y"), ("A b", "y"))
    assert check_rows(train, part("dev", ("d", "x"))) == []


def test_the_same_text_with_two_answers_is_named_with_both_places():
    train = part("training", ("a  b", "x"), ("c", "x"), (" a b\n", "y"), source="t.csv")
    assert found(train) == {
        "conflict": (
            1,
            "1 training documents are copies of earlier ones with another label: "
            "t.csv, line 2 (x) and t.csv, line 4 (y)",
        )
    }


def test_case_and_the_place_between_two_texts_make_a_difference():
    pairs = [(("a", "b c"), "x"), (("a b", "c"), "y"), (("A", "b c"), "y"), (("b c", "a"), "y")]
    assert check_rows(part("training", *pairs)) == []


def test_empty_texts_and_sentences_without_words():
    rows = [("", "x"), ("\t \n", "x"), (("a", ""), "y"), ((), ("O",)), ("a", "x")]
    count, line = found(part("training", *rows, source="t.tsv"))["empty"]
    assert count == 4
    assert line.endswith("t.tsv, line 2; t.tsv, line 3; t.tsv, line 4, ...")


def test_dev_rows_that_were_learnt_from():
    train = part("training", ("a", "x"), ("b", "y"), ("b", "y"), source="t.csv")
    dev = part("dev", ("a ", "x"), ("b", "x"), ("c", "x"), source="d.csv")
    count, line = found(train, dev)["repeated"]
    assert count == 2
    assert line.startswith("2 of 3 dev documents are training documents too, 1 of them with")
    assert "d.csv, line 2 and t.csv, line 2; d.csv, line 3 and t.csv, line 3" in line


def test_dev_rows_that_differ_in_spaces_case_or_punctuation_were_learnt_from():
    train = part("training", ("Late delivery.", "a"), ("late, delivery", "a"), ("Broken", "b"))
    dev = part("dev", ("LATE  delivery!", "a"), ("broken...", "b"), ("fine", "a"))
    assert found(train, dev)["repeated"][0] == 2
    assert not found(part("training", ("Really?", "a"), ("Really!", "b")))


def test_copies_are_counted_but_are_no_warning():
    findings = check_rows(part("training", ("a", "x"), ("a", "x"), ("a ", "x"), ("b", "x")))
    assert [(f.kind, f.count, f.severe) for f in findings] == [("duplicate", 2, False)]


def test_numbers_that_differ_are_noise_and_no_conflict():
    rows = [("a", (1.0,)), ("a", (2.0,)), ("a", (1.0,)), ("b", 0.5), ("b", 0.25)]
    findings = check_rows(part("training", *rows))
    assert [(f.kind, f.count, f.severe) for f in findings] == [
        ("duplicate", 1, False),
        ("noise", 2, False),
    ]


def test_rows_without_answers_cannot_differ_in_them():
    assert found(part("training", ("a", None), ("a", None))) == {
        "duplicate": (1, "1 training documents are copies of earlier ones with the same label")
    }


def test_sets_of_labels_have_no_order_but_tags_have():
    rows = [(("a", "b"), ("x", "y")), (("a", "b"), ("y", "x"))]
    assert "conflict" in found(part("training", *rows))
    assert "conflict" not in found(part("training", *rows, sets=True))
    more = [("a", ("x",)), ("a", ())]
    assert found(part("training", *more, sets=True))["conflict"][0] == 1


def test_of_many_tags_only_those_that_differ_are_shown():
    words = tuple("abcdefgh")
    other = ("O",) * 7 + ("B-place",)
    _, line = found(part("training", (words, ("O",) * 8), (words, other)))["conflict"]
    assert line.endswith("training row 2 (O) and training row 3 (B-place)")


def test_long_answers_are_shortened_and_texts_never_shown():
    secret = "secret " * 20
    rows = [(secret, "x" * 100), (secret, "y" * 100), ("", "z")]
    for finding in check_rows(part("training", *rows), part("dev", *rows)):
        assert "secret" not in finding.line
        assert "x" * 41 not in finding.line


def test_counts_are_those_of_plain_loops():
    rng = random.Random(3)
    rows = [
        (rng.choice("abcdefgh") + " " * rng.randint(0, 2), rng.choice("xyz")) for _ in range(60)
    ]
    texts, seen, conflicts, same = [t.strip() for t, _ in rows], {}, 0, 0
    for text, target in zip(texts, (t for _, t in rows), strict=True):
        earlier = seen.setdefault(text, [])
        conflicts += bool(earlier) and target != earlier[0]
        same += target in earlier
        earlier.append(target)
    held_out = [(rng.choice("abcmnopq"), "x") for _ in range(30)]
    counts = found(part("training", *rows), part("dev", *held_out))
    assert counts["conflict"][0] == conflicts
    assert counts["duplicate"][0] == same
    assert counts["repeated"][0] == sum(text in texts for text, _ in held_out)


def test_many_copies_of_one_text_take_no_longer_than_others():
    rows = [("", "xyz"[i % 3]) for i in range(21_000)]
    counts = found(part("training", *rows), part("dev", *rows))  # minutes if it were quadratic
    assert counts["empty"][0] == 21_000
    assert counts["conflict"][0] == 14_000
    assert counts["duplicate"][0] == 21_000 - 3


def test_labels_are_counted_and_other_answers_are_not():
    rows = part("training", ("a", "x"), ("b", ("x", "y")), ("c", ()), ("d", "a whole text")).rows
    assert label_counts(rows, ("x", "y", "z")) == Counter({"x": 2, "y": 1, "z": 0})


def test_shortening_keeps_both_ends():
    assert shortened("abcdef", 6) == "abcdef"
    for most in (5, 6, 9):
        short = shortened("abcdefghijkl", most)
        assert len(short) == most
        assert short[0] == "a"
        assert short[-1] == "l"
