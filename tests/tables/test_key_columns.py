"""Which columns seem to name people or other groups with several rows, in ordinary tables."""

import csv
from pathlib import Path
from random import Random

import pytest

from ownbert.tables.key_columns import key_columns
from ownbert.tables.memory import table_of

ROWS = 600


def column(values: int, form: str = "{}", seed: int = 0) -> list[str]:
    drawn = Random(seed)
    return [form.format(drawn.randrange(values)) for _ in range(ROWS)]


NAMED = {
    "customer": column(120),
    "patient_id": column(40, "P{}"),
    "userId": column(200),
    "Session ID": column(150, "{}-a"),
    "author": column(30, "Author {}"),
    "speakers": column(9, "S{}"),
    "患者编号": column(80),
    "客户": column(60, "张{}"),
    "doc_id": column(100),
    "order no.": column(250),
    "group": column(12),
    "host": column(6, "srv{}"),
}
CODES = {"ref": column(150, "KX-{:05}"), "batch": column(90, "b{:04}ff"), "sensor_id": column(50)}
ORDINARY = {
    "language": column(12, "lang {}"),
    "year": column(25, "20{:02}"),
    "country": column(60, "Country no. {}"),
    "icd_code": column(100, "E11.{:03}X"),
    "error": column(70, "ERR-{:04}"),
    "model": column(80, "phone-{:04}"),
    "app version": column(90, "v1.2.{:03}"),
    "label_id": column(50),
    "date": column(90, "2024-01-{:02}"),
    "timestamp": column(200, "2024-01-01T10:{:02}:00"),
    "day": column(28, "{}Jan2024"),
    "age": column(80),
    "customer_age": column(70),
    "user_language": column(8, "l{}"),
    "amount": column(300, "{}.5"),
    "price": column(90),
    "stars": column(5),
    "category": column(40, "Category {}"),
    "category_id": column(14),
    "zip": column(250, "{:05}"),
    "city": column(120, "City of {}"),
    "source": column(4, "feed{}"),
    "split": column(3, "fold{}"),
    "version": column(9, "v1.{}"),
    "length": column(200),
    "is_member": column(2),
    "user": column(2, "role{}"),
    "id": [str(i) for i in range(ROWS)],
    "patient": [f"p{i}" for i in range(ROWS)],
    "empty": [""] * ROWS,
}


@pytest.mark.parametrize("named", [NAMED, CODES])
def test_columns_of_groups_are_found(named: dict[str, list[str]], tmp_path: Path):
    assert key_columns(table_of(named), [*named]) == [*named]
    path = tmp_path / "rows.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[*named], *zip(*named.values(), strict=True)])
    assert key_columns(path, [*named]) == [*named]


def test_ordinary_columns_are_none():
    assert key_columns(table_of(ORDINARY), [*ORDINARY]) == []


def test_numbers_missing_values_and_lists_are_read():
    rows = [{"user": i % 50 if i % 3 else None, "tags": [i % 9], "n": i % 7} for i in range(200)]
    assert key_columns(table_of(rows), ["user", "tags", "n"]) == ["user"]
    assert key_columns(table_of(rows), []) == []
