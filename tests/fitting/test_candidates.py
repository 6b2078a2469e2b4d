"""Held-out rows are read as new texts will be."""

import csv
import random
from pathlib import Path

import numpy as np

from ownbert.fitting.linear_candidates import fit_on_folds
from ownbert.views.linear_models import STRENGTHS, fit_linear
from ownbert.views.view_features import VIEWS, Texts
from support.fit_files import labelled


def test_words_that_are_rare_without_the_held_out_rows_do_not_count(tmp_path: Path):
    rng, path = random.Random(0), tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = [(" ".join(str(int(rng.paretovariate(0.5))) for _ in range(8)), i % 2)
                 for i in range(100)]  # fmt: skip
        csv.writer(file).writerows([("text", "label"), *lines])
    rows = labelled(path)
    none, every = Texts([], "ids"), Texts(rows.texts(), "ids")
    view = VIEWS["nb"].fit(every, none)
    assert view.elsewhere is not None
    features = view.features(every)
    found = fit_on_folds(features, rows, elsewhere=view.elsewhere, seconds=0).scores
    expected = []
    for learn, held in rows.folds:
        own = VIEWS["nb"].fit(Texts(rows.texts(learn), "ids"), none)
        known, new = (own.features(Texts(rows.texts(part), "ids")) for part in (learn, held))
        model = fit_linear(known, rows.targets[learn], STRENGTHS[0])
        expected.append(model.scores(new))
    np.testing.assert_allclose(found, np.concatenate(expected), atol=0.02)
    shared = fit_on_folds(features, rows, seconds=0).scores
    assert np.abs(shared - found).max() > 0.1
