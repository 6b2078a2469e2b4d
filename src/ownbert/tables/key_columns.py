"""Finds columns that name a person, a machine or another group with several rows.

Rows of one group are alike, so a model that was trained on some of them seems better on the others
than on new groups. Ordinary categories (languages, years, countries) do not identify anything.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from ownbert.exceptions import InputError
from ownbert.tables.missing_values import is_missing
from ownbert.tables.tables import Source, read_values

# Rows examined.
_ROWS = 50_000
# Minimum numbers of values of a column, and share of the rows whose value repeats.
_FEWEST, _REPEATED = 5, 0.2
# Maximum mean number of rows per value if only the ending of a name (_id) or the values (c0123)
# suggest a key: categories have more.
_MOST_ROWS_PER_ID = 20
# Words in the names of such columns.
_GROUPS = frozenset(
    (
        *("customer", "client", "patient", "user", "username", "userid", "person", "subject"),
        *("participant", "respondent", "member", "account", "session", "conversation", "dialog"),
        *("dialogue", "thread", "chat", "author", "speaker", "writer", "reviewer", "student"),
        *("employee", "employer", "household", "family", "device", "machine", "host", "hostname"),
        *("vehicle", "visitor", "subscriber", "applicant", "tenant", "kunde", "nutzer"),
        *("contract", "policy", "claim", "case", "order", "ticket", "encounter", "admission"),
        *("visit", "episode", "doc", "document", "article", "email", "phone", "iban", "group"),
    )
)
_CHINESE = re.compile("客户|患者|病人|用户|会员|账号|账户|会话|作者|学生|设备|病历号|订单号|工单号")
# Words that do not change what such a name means, and endings of names of keys.
_BESIDE = frozenset(
    (
        *("id", "ids", "key", "no", "nr", "num", "number", "name", "uuid", "guid", "uid", "hash"),
        *("code", "ref", "index", "idx", "the", "anon", "pseudonym", "address", "mail"),
    )
)
_KEYS = frozenset(("id", "key", "uuid", "guid", "uid", "hash"))
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Words in the names of categories whose values are codes, too.
_CATEGORIES = frozenset(
    (
        *("code", "version", "release", "model", "type", "class", "category", "error", "product"),
        *("item", "sku", "icd", "atc", "isbn", "level", "grade", "zip", "date", "time", "label"),
    )
)
# A code: letters and digits, without spaces.
_CODE = re.compile(r"(?=.*\d)(?=.*[^\W\d_])\S{6,}")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?T|\d{1,2}[-./]?[A-Za-z]{3}[-./]?\d{2,4}")


def key_columns(path: Source, names: Sequence[str]) -> list[str]:
    """Columns that look like keys of groups with several rows, in the first rows.

    A column needs several values that repeat; and a name such as customer or patient_id, or a name
    that ends in id, or values that are codes, with a few rows per value.

    Args:
        path: a table.
        names: names of columns without a role.
    """
    if not names:
        return []
    values: list[list[str]] = [[] for _ in names]
    try:
        for _, row in islice(read_values(path, names), _ROWS):
            for column, value in zip(values, row, strict=True):
                if not is_missing(value) and not isinstance(value, list | dict):
                    column.append(str(value).strip())
    except InputError:
        return []  # reported when the rows are read
    return [name for name, column in zip(names, values, strict=True) if _is_key(name, column)]


def _is_key(name: str, values: Sequence[str]) -> bool:
    counts = Counter(values)
    repeated = sum(count for count in counts.values() if count > 1)
    if len(counts) < _FEWEST or repeated < _REPEATED * len(values):
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    groups = [word for word in words if word in _GROUPS or word.removesuffix("s") in _GROUPS]
    if _CHINESE.search(name) or (groups and all(w in groups or w in _BESIDE for w in words)):
        return True
    if len(values) > _MOST_ROWS_PER_ID * len(counts) or not _CATEGORIES.isdisjoint(words):
        return False
    codes = all(_CODE.fullmatch(value) and not _DATE.match(value) for value in counts)
    return codes or (bool(words) and words[-1] in _KEYS)
