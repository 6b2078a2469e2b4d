"""Questions with answers, as SQuAD's JSON and as tables."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ownbert.exceptions import InputError
from ownbert.tables.columns import ColumnNames
from ownbert.tables.squad import GoldAnswer, Question, locate, read_questions

CONTEXT = "Zoé 住在北京😀。 In 1999 Zoé left  Paris; Zoé came back."


def document(answers: Any, context: str = CONTEXT, **more: Any) -> dict[str, Any]:
    asked = {"id": "q1", "question": "Who?", "answers": answers, **more}
    return {"version": "x", "data": [{"paragraphs": [{"context": context, "qas": [asked]}]}]}


def read(path: Path, text: str, **given: Any) -> list[Question]:
    path.write_text(text, encoding="utf-8")
    return list(read_questions(path, **given))


def golds(path: Path, answers: Any, **more: Any) -> tuple[GoldAnswer, ...]:
    return read(path / "d.json", json.dumps(document(answers, **more)))[0].answers


def test_answers_stand_where_they_are_said_to_or_nearest_to_it(tmp_path: Path):
    last = CONTEXT.rindex("Zoé")
    said = [{"text": "Zoé", "answer_start": start} for start in (0, last, last - 2, -1, 10**6)]
    assert [gold.start for gold in golds(tmp_path, said)] == [0, last, last, 0, last]
    for text in ("北京", "😀", "Zoé"):
        (gold,) = golds(tmp_path, [{"text": text, "answer_start": 3}])
        assert gold.start is not None
        assert CONTEXT[gold.start :].startswith(text)


def test_case_and_blanks_may_differ_and_the_words_are_those_of_the_context():
    assert locate(CONTEXT, "LEFT Paris", 0) == GoldAnswer("left  Paris", CONTEXT.index("left"))
    assert locate(CONTEXT, "Rome", 5) == GoldAnswer("Rome", None)
    assert locate("a+b (c) d", "(C)") == GoldAnswer("(c)", 4)


def test_no_answer_is_an_empty_list_or_said(tmp_path: Path):
    assert golds(tmp_path, []) == ()
    assert golds(tmp_path, [{"text": "Zoé", "answer_start": 0}], is_impossible=True) == ()
    assert golds(tmp_path, [{"text": " ", "answer_start": 0}]) == ()


def test_all_ways_of_writing_answers_are_read_alike(tmp_path: Path):
    row = {"question": "Who?", "context": CONTEXT, "id": 7}
    ways: list[Any] = [
        {"text": ["Zoé", "Paris"], "answer_start": [0, CONTEXT.index("Paris")]},
        {"text": ["Zoé", "Paris"], "answer_start": ["0.0", float(CONTEXT.index("Paris"))]},
        [{"text": "Zoé", "answer_start": 0}, {"text": "Paris"}],
        ["Zoé", "Paris"],
    ]
    wanted = (GoldAnswer("Zoé", 0), GoldAnswer("Paris", CONTEXT.index("Paris")))
    for name in ("rows.jsonl", "rows.json"):
        lines = "\n".join(json.dumps({**row, "answers": way}) for way in [*ways, "Zoé", []])
        found = read(tmp_path / name, lines)
        assert [q.answers for q in found] == [*[wanted] * 4, wanted[:1], ()]
        assert {(q.id, q.question, q.context) for q in found} == {(7, "Who?", CONTEXT)}
        assert found[1].where.endswith(f"{name}, line 2")


def test_tables_and_parquet(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    last = CONTEXT.rindex("Zoé")
    text = f'passage,query,answer,answer_start\n"{CONTEXT}",Who?,Zoé,{last}\n"{CONTEXT}",W?,,\n'
    found = read(tmp_path / "rows.csv", text)
    assert [q.answers for q in found] == [(GoldAnswer("Zoé", last),), ()]
    named = ColumnNames("p", "q", "r")
    (only,) = read(tmp_path / "rows.tsv", "q\tp\tr\na b\twhat\tb\n", given=named)
    assert (only.question, only.context, only.answers) == ("what", "a b", (GoldAnswer("b", 2),))
    answers = [{"text": ["b"], "answer_start": [2]}, {"text": [], "answer_start": []}]
    table = {"id": ["x", "y"], "question": ["?"] * 2, "context": ["a b"] * 2, "answers": answers}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    found = list(read_questions(tmp_path / "rows.parquet"))
    assert [q.answers for q in found] == [(GoldAnswer("b", 2),), ()]


def test_one_document_on_one_line_or_many_and_packed(tmp_path: Path):
    value = document([{"text": "Zoé", "answer_start": 0}])
    one = read(tmp_path / "a.json", json.dumps(value) + "\n")
    many = read(tmp_path / "a.json", json.dumps(value, indent=2, ensure_ascii=False))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(value).encode()))
    packed = list(read_questions(tmp_path / "a.json.gz"))
    assert one == many
    assert one[0].answers == packed[0].answers == (GoldAnswer("Zoé", 0),)


def test_questions_to_predict_need_no_answers(tmp_path: Path):
    value = document(None)
    del value["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    text = json.dumps(value)
    assert read(tmp_path / "a.json", text, labelled=False)[0].question == "Who?"
    with pytest.raises(InputError, match=r"a.json, question 'q1': the key 'answers' is missing"):
        read(tmp_path / "a.json", text)
    rows = '{"question": "?", "context": "a"}'
    assert read(tmp_path / "a.jsonl", rows, labelled=False)[0].context == "a"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "", "a.json is empty"),
        ("a.json", "3", "JSON, but not in SQuAD format; expected: SQuAD JSON"),
        ("a.json", "[1, 2]", "JSON, but not in SQuAD format; expected: SQuAD JSON"),
        ("a.json", '{\n"articles": []\n}', "JSON, but not in SQuAD format; expected"),
        ("a.json", '{"articles": []}', "no column 'question'; name it with text_column"),
        ("a.json", '{"data": []}', "has no questions"),
        ("a.json", '{"data": 3}', "'data' is a int, a list is needed"),
        ("a.json", '{"data": [{}]}', "article 1: the key 'paragraphs' is missing"),
        ("a.json", '{"data": [3]}', "article 1: a int instead of an object with 'paragraphs'"),
        ("a.json", '{"data": [', "is not JSON"),
        ("a.json", '{"data": []}\n{"data": []}', "is not one JSON document"),
        ("a.txt", "hello", "plain text"),
        ("a.csv", "question,answer\n", "no column 'context'"),
        ("a.csv", "question,context,answers\n", "has no questions"),
        ("a.csv", "question,context,answers,start\n?,a b,b,x\n", "line 2: 'answer_start' is 'x'"),
        ("a.csv", "question,context,answers,start\n?,a b,b,1e999\n", "'answer_start' is '1e999'"),
        ("a.jsonl", '{"question": "?", "context": "a", "answers": null}', "line 1: 'answers' is"),
        (
            "a.jsonl",
            '{"question": "?", "context": "a", "answers": {"text": ["a"], "answer_start": []}}',
            "1 answers, but 0 values in 'answer_start'",
        ),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
):
    with pytest.raises(InputError) as error:
        read(tmp_path / name, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_misplaced_answers_of_cmrc2018(shared_data: Path):
    """193 of the 200 that are not at their start are nowhere: people wrote them anew."""
    path = shared_data / "cmrc2018" / "cmrc2018_dev.json.gz"
    questions = list(read_questions(path))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        given = [
            (p["context"], answer["text"], answer["answer_start"])
            for article in json.load(file)["data"]
            for p in article["paragraphs"]
            for asked in p["qas"]
            for answer in asked["answers"]
        ]
    found = [(q.context, gold) for q in questions for gold in q.answers]
    assert (len(questions), len(found)) == (3219, 9657)
    moved = 0
    for (context, text, start), (_, (own, at)) in zip(given, found, strict=True):
        moved += not context.startswith(text, max(start, 0)) or start < 0
        assert at is not None or text not in context
        assert at is None or context[at : at + len(own)] == own
    assert moved == 200
    assert all(any(gold.start is not None for gold in q.answers) for q in questions)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_xquad(shared_data: Path, language: str):
    questions = list(read_questions(shared_data / "xquad" / f"xquad.{language}.json.gz"))
    assert len(questions) == 1190
    assert len({q.context for q in questions}) == 240
    assert all(gold.start is not None for q in questions for gold in q.answers)


def test_squad_2(shared_data: Path):
    for name, total, none in (("train", 4449, 2342), ("dev", 1629, 826)):
        questions = list(read_questions(shared_data / "squad2-dev-half" / f"{name}.json.gz"))
        assert (len(questions), sum(not q.answers for q in questions)) == (total, none)


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ('{"text": ["b c"], "answer_start": [2]}', [("b c", 2)]),
        ("{'text': ['b c'], 'answer_start': [2]}", [("b c", 2)]),
        ("{'text': array(['b c'], dtype=object), 'answer_start': array([2])}", [("b c", 2)]),
        (
            '[{"text": "a", "answer_start": 0}, {"text": "c", "answer_start": 4}]',
            [("a", 0), ("c", 4)],
        ),
        ('{"text": [], "answer_start": []}', []),
        ("[d]", [("[d]", 6)]),
        ("{broken", [("{broken", None)]),
    ],
)
def test_answers_in_a_csv_may_be_json(cell: str, answers: list[Any], tmp_path: Path):
    path = tmp_path / "qa.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["question", "context", "answers"], ["q?", "a b c [d]", cell]])
    (question,) = read_questions(path)
    assert [*question.answers] == answers


def test_answers_after_a_line_end_of_windows_keep_their_positions(tmp_path: Path):
    path = tmp_path / "qa.csv"
    path.write_bytes(b'question,context,answers,answer_start\r\nq?,"one\r\ntwo",two,5\r\n')
    (question,) = read_questions(path)
    assert question.context == "one\r\ntwo"
    assert [*question.answers] == [("two", 5)]
