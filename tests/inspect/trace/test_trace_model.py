"""Every number of a model's trace is the model's own; what its page says is what they are."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Disentangled, Mobile
from ownbert.exceptions import InputError
from ownbert.inspect.trace.model_trace import trace_model
from ownbert.inspect.trace.trace import Trace, as_page, explain
from ownbert.inspect.trace.worked_example import EXAMPLE, trace_attention
from ownbert.nn.context import Context
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from support.cli import run_cli

WORDS = [*"abcdefgh", "12", "845", "今天"]
TOKENIZER = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
TEXT = "a 12 今天 b 845 a"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def small(**changes) -> Model:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": TOKENIZER.vocab_size,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "max_position_embeddings": 16,
    }
    model = Model(EncoderConfig(**{**sizes, **changes}), ["mlm"])
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
    batch = _batch(ids)
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


def _batch(ids: list[int]) -> Batch:
    return pack([Example(np.asarray(ids), np.zeros(len(ids), dtype=np.int64))])


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


def test_what_cannot_be_shown_is_refused():
    model = small(pruned_heads={1: (0, 2)})
    with pytest.raises(InputError, match=r"layer 1 has no head 2; it has 1, 3"):
        trace_model(model, TOKENIZER, TEXT, 1, 2)
    with pytest.raises(InputError, match=r"there is no layer 3; the layers are 0\.\.2"):
        trace_model(model, TOKENIZER, TEXT, 3)
    with pytest.raises(InputError, match="there is no layer -1"):
        trace_model(model, TOKENIZER, TEXT, -1)
    with pytest.raises(InputError, match=r"has 22 tokens with the special ones; .* at most 16"):
        trace_model(model, TOKENIZER, "a " * 20)
    decoder = small(is_decoder=True, add_cross_attention=True)
    with pytest.raises(InputError, match="attends to an encoder"):
        trace_model(decoder, TOKENIZER, TEXT)
    with pytest.raises(InputError, match="Linear is not a model of OwnBERT"):
        trace_model(torch.nn.Linear(2, 2), TOKENIZER, TEXT)


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
    hostile = trace_model(small(), _hostile(), "</script><b> a", 0, 0)
    page = as_page(hostile)
    assert not re.search(r"""(?:src|href)=|url\(|@import|https?://(?!www\.w3\.org)""", page)
    assert page.count("</script>") == 2
    assert "<b>" not in page.split("<script>")[0]


def _hostile() -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return Tokenizer.blank([*special, "</script><b>", *WORDS[:-1]])


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
    page = tmp_path / "page.html"
    page.write_text(as_page(trace))
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"{page.as_uri()}#{key}.{row}.{column}"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    (said,) = re.findall(r'<output id="sum"[^>]*>(.*?)</output>', done.stdout)
    assert html.unescape(said).split("   (")[0] == explain(trace, key, row, column)
    cells = re.findall(r'data-place="weights\.0\.\d+"[^>]*>([^<]+)<', done.stdout)
    assert [float(cell) for cell in cells] == pytest.approx(trace["weights"][0], abs=5e-5)


def test_the_command_of_a_folder(tmp_path: Path):
    save(small(), tmp_path / "model", tokenizer=TOKENIZER)
    done = run_cli("trace", tmp_path / "model", TEXT, "--layer", 1, "--head", 3, "--json")
    assert done.returncode == 0, done.stderr
    steps = {step["key"]: step for step in json.loads(done.stdout)["steps"]}
    expected = trace_model(small(), TOKENIZER, TEXT, 1, 3)
    assert close(np.asarray(steps["weights"]["values"]), expected["weights"])
