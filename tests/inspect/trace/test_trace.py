"""Every number of a trace is the one that attention computes, and each sum adds up to it."""

import json
import math
import re
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch

from ownbert.batches.layout import make_layout
from ownbert.exceptions import InputError
from ownbert.inspect.trace.trace import as_page, explain, number
from ownbert.inspect.trace.worked_example import (
    EXAMPLE,
    read_inputs,
    round_weights,
    trace_attention,
)
from ownbert.nn.attention.attend import attend
from support.cli import run_cli


def close(found: np.ndarray, expected) -> bool:
    return np.allclose(found, np.asarray(expected), atol=2e-5)


def test_the_worked_example():
    trace = trace_attention(**EXAMPLE)
    assert trace["queries"].tolist() == [[1, 0, 2], [2, 2, 2], [2, 1, 3]]
    assert trace["keys"].tolist() == [[0, 1, 1], [4, 4, 0], [2, 3, 1]]
    assert trace["values"].tolist() == [[1, 2, 3], [2, 8, 0], [2, 6, 3]]
    assert trace["scores"].tolist() == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    assert trace["weights"][0].round(4).tolist() == [0.0634, 0.4683, 0.4683]
    assert trace["outputs"].round(4).tolist() == [
        [1.9366, 6.6831, 1.5951],
        [2.0, 7.9640, 0.0540],
        [1.9997, 7.7599, 0.3584],
    ]


def test_the_worked_example_with_rounded_weights():
    trace = trace_attention(**EXAMPLE, digits=1)
    assert trace.facts["weights"] == "rounded to 1 decimal"
    assert trace_attention(**EXAMPLE, digits=0).facts["weights"] == "rounded to 0 decimals"
    assert trace["rounded"].tolist() == [[0, 0.5, 0.5], [0, 1, 0], [0, 0.9, 0.1]]
    assert close(trace["outputs"], [[2, 7, 1.5], [2, 8, 0], [2, 7.8, 0.3]])
    assert close(trace["weighted"][:3], [[0, 0, 0], [1, 4, 0], [1, 3, 1.5]])
    assert close(trace["weighted"].reshape(3, 3, 3).sum(1), trace["outputs"])


def test_rounding_keeps_the_sum_of_a_row():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(7), 200)
    for digits in range(5):
        rounded = round_weights(weights, digits)
        assert np.allclose(rounded.sum(1), 1)
        assert np.abs(rounded - weights).max() < 10.0**-digits
        assert np.allclose(rounded, rounded.round(digits))
    # Plain rounding of the example's first row does not keep it.
    assert np.round([0.0634, 0.4683, 0.4683], 1).sum() == pytest.approx(1.1)


def test_it_is_what_attention_computes():
    rng = np.random.default_rng(1)
    numbers = {"inputs": rng.normal(size=(5, 6))}
    numbers |= {name: rng.normal(size=(6, 4)) for name in ("query", "key", "value")}
    trace = trace_attention(**numbers, scale=True)
    q, k, v = (torch.tensor(trace[name])[:, None] for name in ("queries", "keys", "values"))
    out, weights = attend(q, k, v, make_layout([5]), weights=True, backend="reference")
    assert weights is not None
    assert close(trace["weights"], weights[0][0])
    assert close(trace["outputs"], out[:, 0])
    assert close(trace["scaled"], trace["scores"] / 2)
    plain = trace_attention(**numbers)
    assert "scaled" not in {step.key for step in plain.steps}
    assert not close(plain["outputs"], trace["outputs"])


def test_values_may_be_wider_than_keys():
    trace = trace_attention([[1, 2]], [[1], [0]], [[0], [1]], [[1, 2, 3], [4, 5, 6]])
    assert trace["outputs"].tolist() == [[9, 12, 15]]


def test_shapes_that_do_not_fit():
    def refused(match: str, **changes) -> None:
        with pytest.raises(InputError, match=match):
            trace_attention(**{**EXAMPLE, **changes})

    refused("key has 3 rows; the inputs are 4 numbers wide, so it must have 4", key=np.ones((3, 3)))
    refused("query has 2 columns and key 3", query=np.ones((4, 2)))
    refused("inputs is 4; it must be rows and columns", inputs=[1, 2, 3, 4])
    refused("value must be rows of numbers, all of one length", value=[[1, 2], [3]])
    refused("value must be rows of numbers", value=[["a"]])
    refused("query contains a value that is not a finite number", query=np.full((4, 3), np.nan))
    refused(r"rounded to 0\.\.10 decimals, not -1", digits=-1)


def test_files(tmp_path: Path):
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps(EXAMPLE))
    assert read_inputs(path) == EXAMPLE
    np.savez(tmp_path / "numbers.npz", **EXAMPLE)
    trace = trace_attention(**read_inputs(tmp_path / "numbers.npz"))
    assert close(trace["scores"], [[2, 4, 4], [4, 16, 12], [4, 12, 10]])
    for text, match in (
        ("{", r"numbers\.json is not valid JSON"),
        ("[]", r"numbers\.json must contain a JSON object"),
        ("{}", "contains nothing; it must contain inputs, query, key, value"),
        ('{"inputs": [[1]], "query": [[1]]}', "contains inputs, query; it must contain"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=match):
            read_inputs(path)
    whole = (tmp_path / "numbers.npz").read_bytes()
    np.save(tmp_path / "one.npy", np.ones((3, 4)))
    one = (tmp_path / "one.npy").read_bytes()
    bad = tmp_path / "bad.npz"
    for data in (b"no", b"", whole[:-40], whole[:60] + bytes(99) + whole[159:], one):
        bad.write_bytes(data)
        with pytest.raises(InputError, match=r"bad\.npz cannot be read \(it is damaged"):
            read_inputs(bad)
    np.savez(tmp_path / "pickle.npz", **{**EXAMPLE, "key": np.array([{}], dtype=object)})
    with pytest.raises(InputError, match=r"cannot be read \(it contains objects\)"):
        read_inputs(tmp_path / "pickle.npz")
    for name in ("none.json", "none.npz"):
        with pytest.raises(InputError, match="no such file"):
            read_inputs(tmp_path / name)


def test_numbers_whose_scores_would_be_infinite(tmp_path: Path):
    path = tmp_path / "numbers.json"
    beyond, digits = "numbers.json: key contains a number beyond 1e+60", "has too many digits"
    for large, message in ((1e308, beyond), (-1e77, beyond), (10**400, digits)):
        path.write_text(json.dumps({**EXAMPLE, "key": [[large] * 3] * 4}))
        with pytest.raises(InputError, match=re.escape(message)):
            read_inputs(path)
    most = {name: np.full(np.shape(rows), 1e60) for name, rows in EXAMPLE.items()}
    np.savez(tmp_path / "most.npz", **most)
    trace = trace_attention(**read_inputs(tmp_path / "most.npz"))
    assert all(np.isfinite(step.values).all() for step in trace.steps)


def test_sums_in_words():
    trace = trace_attention(**EXAMPLE, digits=1)
    for key, row, column, words in (
        ("inputs", 1, 3, "inputs[1][3] = 2"),
        ("queries", 2, 2, "queries[2][2] = inputs[2] . query[:][2] = 1*1 + 1*0 + 1*1 + 1*1 = 3"),
        ("scores", 1, 2, "scores[1][2] = queries[1] . keys[2] = 2*2 + 2*3 + 2*1 = 12"),
        (
            "weights",
            0,
            1,
            "weights[0][1] = exp(4) / (exp(2) + exp(4) + exp(4)) = 54.5982 / 116.5854 = 0.4683",
        ),
        ("rounded", 0, 1, "rounded[0][1] = weights[0][1] (0.4683) rounded = 0.5"),
        ("weighted", 7, 1, "weighted[7][1] = rounded[2][1] * values[1][1] = 0.9 * 8 = 7.2"),
        ("outputs", 2, 1, "outputs[2][1] = rounded[2] . values[:][1] = 0*2 + 0.9*8 + 0.1*6 = 7.8"),
    ):
        assert explain(trace, key, row, column) == words
    scaled = trace_attention(**EXAMPLE, scale=True)
    found = explain(scaled, "scaled", 0, 1)
    assert found == "scaled[0][1] = scores[0][1] * 0.5774 = 4 * 0.5774 = 2.3094"


def test_numbers_in_words():
    values = (0.0, -0.00001, 6.1e-6, 1.0, -0.5, 0.03125 + 1e-9, 12345.5, -math.inf)
    said = ("0", "-1e-5", "6e-6", "1", "-0.5", "0.0313", "12345.5", "hidden")
    assert tuple(map(number, values)) == said


def run(*arguments: str) -> CompletedProcess[str]:
    return run_cli("trace", *arguments)


def test_the_command(tmp_path: Path):
    done = run("--round", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == str(trace_attention(**EXAMPLE, digits=1)).split()
    page = tmp_path / "page.html"
    done = run("--html", str(page))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"saved {page}\n")
    assert page.read_text() == as_page(trace_attention(**EXAMPLE))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("folder", "text", "--scale"), "--inputs, --scale and --round are for numbers"),
        (("folder",), "a text is needed"),
        (("folder", "text"), "no such folder: folder"),
        (("--layer", "1"), "--layer and --head apply to a model"),
        (("--inputs", "none.json"), "no such file: none.json"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], said: str):
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
