"""The table of position kinds is the only place that knows them by name."""

import re

from ownbert.config.position_kinds import KINDS
from ownbert.nn import positions
from support.source_code import SOURCE


def test_no_other_module_compares_names_of_position_kinds():
    compared = re.compile(r"position_embedding_type( [!=]= | in |\.startswith)")
    files = (path for path in sorted(SOURCE.rglob("*.py")) if path.parent.name != "families")
    assert not [str(path) for path in files if compared.search(path.read_text("utf-8"))]


def test_the_modules_of_scores_exist():
    for kind in KINDS.values():
        assert kind.bias is None or hasattr(positions, kind.bias)
        assert not (kind.of_embeddings and kind.bias)
