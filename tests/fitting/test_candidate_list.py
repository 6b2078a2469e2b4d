"""``CANDIDATES`` is all that ``fit`` knows of a model that it compares."""

from pathlib import Path
from typing import Any

import pytest

import ownbert
from ownbert.exceptions import InputError
from ownbert.fitting import candidates, fit
from ownbert.fitting.candidates import CANDIDATES, FitCandidate, Steps, candidates_for
from ownbert.fitting.fit import preview_fit
from ownbert.fitting.linear_candidates import fit_view
from ownbert.fitting.rows.fit_input import checked_input
from support.fit_files import json_of


def make_again(steps: Steps, path: Path) -> candidates.Made:
    """A second linear model on LSA vectors."""
    texts = (steps.inputs.labelled, steps.inputs.learnt, steps.inputs.unlabelled)
    scores, _ = fit_view("lsa", steps.rows, *texts, path)
    return candidates.Made([f"members/{path.name}"], scores)


AGAIN = FitCandidate(
    "lsa-again",
    "LSA, a second time",
    "linear",
    make_again,
    suits=lambda inputs: inputs.rows.task.name == "classify",
    needs=lambda steps: steps.find("lsa") is not None,
)


@pytest.fixture
def with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [candidate.name for candidate in CANDIDATES]
    place = names.index("self-trained")
    longer = (*CANDIDATES[:place], AGAIN, *CANDIDATES[place:])
    for module in (candidates, fit):
        monkeypatch.setattr(module, "CANDIDATES", longer)


def test_a_candidate_is_one_entry(
    with_another: None, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is previewed, fitted, blended, reported and resumed, and refused where it is unknown."""
    out, train = tmp_path / "best", topics / "train.csv"
    given: dict[str, Any] = {"dev": topics / "dev.csv", "minutes": 0.3}
    lines = preview_fit(train, **given).splitlines()
    assert lines.index(AGAIN.title) > lines.index("LSA")
    numbers = ([f"word {i % 9}" for i in range(40)], [i / 7 for i in range(40)])
    assert AGAIN.title not in preview_fit(numbers)
    given |= {"output": out, "quiet": True}
    ownbert.fit(train, **given)
    report = json_of(out)
    (row,) = (row for row in report["leaderboard"] if row["name"] == AGAIN.title)
    assert (row["kind"], row["score"] > 0.5) == ("linear", True)
    assert AGAIN.title in (out / "README.md").read_text()
    weights = out / "members" / AGAIN.name / "linear.safetensors"
    made = weights.stat().st_mtime_ns
    ownbert.fit(train, resume=True, **given)
    assert weights.stat().st_mtime_ns == made
    monkeypatch.undo()
    with pytest.raises(InputError, match=f"name is '{AGAIN.name}'; it must be one of tfidf"):
        ownbert.fit(train, resume=True, **given)


def test_names_are_unique_and_the_order_depends_on_who_pretrains(pretrained: Path, topics: Path):
    names = [candidate.name for candidate in CANDIDATES]
    assert len({*names}) == len(names)
    orders = []
    for options in ({}, {"model": str(pretrained)}):
        with checked_input(topics / "train.csv", Path("own"), options) as given:
            orders.append([c.name for c in candidates_for(given) if c.kind != "linear"])
    assert orders[0] == [
        *("joined", "start", "network", "joined-finetuned", "probe", "student", "joined-student"),
    ]
    assert orders[1] == ["probe", "start", "joined", "network", "joined-finetuned"]
