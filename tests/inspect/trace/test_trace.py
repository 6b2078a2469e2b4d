"""Every number of a trace is the one that attention computes, and each sum adds up to it; a model's
trace has the model's own numbers, and its page says what they are."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Example, pack
from ownbert.batches.layout import make_layout
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Disentangled, Mobile
from ownbert.exceptions import InputError
from ownbert.inspect.trace.model_trace import trace_model
from ownbert.inspect.trace.trace import (
    EXAMPLE,
    Trace,
    as_page,
    explain,
    number,
    read_inputs,
    round_weights,
    trace_attention,
)
from ownbert.nn.attention.attend import attend
from ownbert.nn.context import Context
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from support.browser import CHROMIUM, in_browser
from support.cli import refusal, run_cli
from support.tiny import SPECIAL

WORDS = [*"abcdefgh", "12", "845", "今天"]
TOKENIZER = Tokenizer.blank([*SPECIAL, *WORDS])
TEXT = "a 12 今天 b 845 a"


def small(**changes) -> Model:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "max_position_embeddings": 16}
    sizes |= {"num_hidden_layers": 3, "num_attention_heads": 4}
    model = Model(EncoderConfig(vocab_size=TOKENIZER.vocab_size, **{**sizes, **changes}), ["mlm"])
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    return model.eval()


def close(found: np.ndarray, expected) -> bool:
    return np.allclose(found, np.asarray(expected), atol=2e-5)


KINDS = {
    "plain": {},
    "relative_key": {"position_embedding_type": "relative_key"},
    "relative_key_query": {"position_embedding_type": "relative_key_query"},
    "alibi": {"position_embedding_type": "alibi"},
    "rotary": {"position_embedding_type": "rotary"},
    "decoder": {"is_decoder": True},
    "decoder alibi": {"is_decoder": True, "position_embedding_type": "alibi"},
    "pruned": {"pruned_heads": {1: (0, 2)}},
    "shared": {"num_hidden_groups": 1},
    "pre-norm": {"norm_first": True, "final_norm": True, "qkv_bias": False, "qk_scale": 0.3},
    "relative, own scale": {"position_embedding_type": "relative_key", "qk_scale": 0.3},
    "blurred": {"attention_blur": 0.5},
    "distances": {"disentangled": Disentangled(position_buckets=4, conv_kernel_size=3)},
    "distances, shared": {"disentangled": Disentangled(share_att_key=True)},
    "mobile": {"embedding_size": 8, "mobile": Mobile(intra_bottleneck_size=12)},
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_a_models_numbers_are_its_own(changes: dict):
    model, layer, head = small(**changes), 1, 3
    trace = trace_model(model, TOKENIZER, TEXT, layer, head)
    attention = model.encoder.schedule()[layer][0].attention
    outputs = []
    hook = attention.register_forward_hook(lambda m, i, o: outputs.append(o))
    ids = [TOKENIZER.cls_id, *TOKENIZER.encode_batch([TEXT])[0], TOKENIZER.sep_id]
    batch = pack([Example(np.asarray(ids), np.zeros(len(ids), dtype=np.int64))])
    plain = model.encoder.plain_context(batch)
    context = Context(plain.layout, plain.positions, keep=frozenset([layer]))
    with torch.no_grad():
        model(batch, context=context)
    hook.remove()
    weights = context.attentions[layer][0][attention.kept.index(head)]
    # Layers that share their weights run them in turn.
    output = outputs[layer] if len(outputs) > 1 else outputs[0]
    assert close(trace["weights"], weights)
    assert close(trace["attended"], output)
    assert trace.step("weights").rows == ("[CLS]", *TEXT.split(), "[SEP]")
    follows(trace)


def follows(trace: Trace) -> None:
    """Each step follows from those that it names."""
    for step in trace.steps:
        made = step.made
        if made.kind == "given":
            continue
        left = trace[made.left]
        if made.kind == "product":
            right = trace[made.right]
            expected = left @ (right.T if made.turned else right)
            expected = expected + trace[made.bias] if made.bias else expected
        elif made.kind == "softmax":
            powers = np.exp(left - left.max(1, keepdims=True))
            expected = powers / powers.sum(1, keepdims=True)
        elif made.kind == "scale":
            expected = left * made.factor
        elif made.kind == "add":
            expected = left + trace[made.right]
        elif made.kind == "hide":
            expected = np.where(np.tri(len(left), dtype=bool), left, -np.inf)
        else:
            assert made.kind == "rotate"
            half = left.shape[1] // 2
            pairs = zip(np.split(left, [half], 1), np.split(step.values, [half], 1), strict=True)
            before, after = zip(*pairs, strict=True)
            assert close(np.hypot(*before), np.hypot(*after))
            assert not close(left[1:], step.values[1:])
            continue
        assert close(step.values, expected), step.key


def test_the_shares_of_all_heads_and_the_bias_are_the_output():
    model = small()
    traces = [trace_model(model, TOKENIZER, TEXT, 2, head) for head in range(4)]
    bias = model.encoder.blocks[2].attention.output.bias.detach().numpy()
    total = sum(trace["share"] for trace in traces) + bias
    assert close(traces[0]["attended"], total)


def test_the_cut_of_a_head():
    model = small()
    trace = trace_model(model, TOKENIZER, TEXT, 0, 2)
    qkv = model.encoder.blocks[0].attention.qkv.weight.detach()
    assert trace.cut is not None
    assert trace.cut.columns == {
        "queries": ("qkv", 12, 17),
        "keys": ("qkv", 36, 41),
        "values": ("qkv", 60, 65),
    }
    assert close(trace["key"], qkv.T[:, 36:42])
    text = str(trace)
    assert "keys    |..#.| columns 36..41 of the 72 of qkv" in text
    assert "output  |..#.| rows 12..17 of 24 of output" in text


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"pruned_heads": {1: (0, 2)}}, (TEXT, 1, 2), "layer 1 has no head 2; it has 1, 3"),
        ({}, (TEXT, 3), r"there is no layer 3; the layers are 0\.\.2"),
        ({}, (TEXT, -1), "there is no layer -1"),
        ({}, ("a " * 20,), r"has 22 tokens with the special ones; .* at most 16"),
        ({"is_decoder": True, "add_cross_attention": True}, (TEXT,), "attends to an encoder"),
        (None, (TEXT,), "Linear is not a model of OwnBERT"),
    ],
)
def test_what_cannot_be_shown_is_refused(changes: dict | None, arguments: tuple, message: str):
    model = torch.nn.Linear(2, 2) if changes is None else small(**changes)
    with pytest.raises(InputError, match=message):
        trace_model(model, TOKENIZER, *arguments)


def test_the_model_is_as_it_was():
    model = small().train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    trace_model(model, TOKENIZER, TEXT)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert not any(m._forward_hooks for m in model.modules())
    assert "attend" not in vars(model.encoder.blocks[0].attention)


def test_a_hidden_score_gets_no_weight():
    trace = trace_model(small(is_decoder=True), TOKENIZER, TEXT, 0, 0)
    assert (trace["weights"][np.triu_indices(8, 1)] == 0).all()
    assert trace.as_json()["steps"][-7]["key"] == "masked"
    assert trace.as_json()["steps"][-7]["values"][0][1] is None
    assert explain(trace, "weights", 0, 1).startswith("weights[0][1] = 0 / (exp(")
    assert "hidden" in str(trace)


def test_it_fits_80_columns():
    for trace in (
        trace_attention(**EXAMPLE, digits=1),
        trace_model(small(hidden_size=192), TOKENIZER, TEXT, 0, 1),
    ):
        assert max(map(len, str(trace).splitlines())) <= 80


def test_the_page_needs_nothing_else():
    tokenizer = Tokenizer.blank([*SPECIAL, "</script><b>", *WORDS[:-1]])
    hostile = trace_model(small(), tokenizer, "</script><b> a", 0, 0)
    page = as_page(hostile)
    assert not re.search(r"""(?:src|href)=|url\(|@import|https?://(?!www\.w3\.org)""", page)
    assert page.count("</script>") == 2
    assert "<b>" not in page.split("<script>")[0]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not here")
@pytest.mark.parametrize(
    ("key", "row", "column"),
    [
        ("inputs", 1, 1),
        ("queries", 2, 2),
        ("scores", 1, 2),
        ("scaled", 2, 0),
        ("weights", 0, 1),
        ("weights", 1, 0),
        ("rounded", 0, 0),
        ("weighted", 7, 1),
        ("outputs", 2, 1),
        ("masked", 0, 3),
        ("attended", 2, 23),
    ],
)
def test_a_browser_says_the_same_sums(tmp_path: Path, key: str, row: int, column: int):
    if key in ("masked", "attended"):
        trace = trace_model(small(is_decoder=True), TOKENIZER, TEXT, 1, 1)
    else:
        trace = trace_attention(**EXAMPLE, scale=True, digits=1)
    said, cells = in_browser(
        as_page(trace),
        """return [document.getElementById("sum").textContent,
          [...document.querySelectorAll('[data-place^="weights.0."]')].map(e => e.textContent)];""",
        tmp_path / "profile",
        fragment=f"{key}.{row}.{column}",
    )
    assert said.split("   (")[0] == explain(trace, key, row, column)
    assert [float(cell) for cell in cells] == pytest.approx(trace["weights"][0], abs=5e-5)


def test_the_command_of_a_folder(tmp_path: Path):
    save(small(), tmp_path / "model", tokenizer=TOKENIZER)
    done = run_cli("trace", tmp_path / "model", TEXT, "--layer", 1, "--head", 3, "--json")
    assert done.returncode == 0, done.stderr
    steps = {step["key"]: step for step in json.loads(done.stdout)["steps"]}
    expected = trace_model(small(), TOKENIZER, TEXT, 1, 3)
    assert close(np.asarray(steps["weights"]["values"]), expected["weights"])


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
    wide = trace_attention([[1, 2]], [[1], [0]], [[0], [1]], [[1, 2, 3], [4, 5, 6]])
    assert wide["outputs"].tolist() == [[9, 12, 15]]  # values may be wider than keys
    plain = trace_attention(**numbers)
    assert "scaled" not in {step.key for step in plain.steps}
    assert not close(plain["outputs"], trace["outputs"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"key": np.ones((3, 3))},
            "key has 3 rows; the inputs are 4 numbers wide, so it must have 4",
        ),
        ({"query": np.ones((4, 2))}, "query has 2 columns and key 3"),
        ({"inputs": [1, 2, 3, 4]}, "inputs is 4; it must be rows and columns"),
        ({"value": [[1, 2], [3]]}, "value must be rows of numbers, all of one length"),
        ({"value": [["a"]]}, "value must be rows of numbers"),
        ({"query": np.full((4, 3), np.nan)}, "query contains a value that is not a finite number"),
        ({"digits": -1}, r"rounded to 0\.\.10 decimals, not -1"),
    ],
)
def test_numbers_that_do_not_fit(changes: dict, message: str):
    with pytest.raises(InputError, match=message):
        trace_attention(**{**EXAMPLE, **changes})


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


def test_the_command(tmp_path: Path):
    done = run_cli("trace", "--round", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == str(trace_attention(**EXAMPLE, digits=1)).split()
    page = tmp_path / "page.html"
    done = run_cli("trace", "--html", page)
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
    assert said in refusal("trace", *arguments)
