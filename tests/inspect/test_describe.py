"""What ``describe`` says of a model is true of it."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert.checkpoint import save
from ownbert.config.encoder import SIZES, EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import Disentangled, Mobile
from ownbert.exceptions import InputError
from ownbert.inspect.describe import Overview, describe
from ownbert.inspect.internals.observing import ranges
from ownbert.nn.model import Model
from ownbert.text.bert_rules import SPECIAL_TOKENS
from ownbert.text.tokenizer import Tokenizer
from support.cli import refusal, run_cli

BASE_UNCASED = {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522}
BASE_UNCASED |= {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
BASE_UNCASED |= {"num_hidden_layers": 12, "max_position_embeddings": 512, "type_vocab_size": 2}
SMALL = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40}
SMALL |= {"num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 16}


def small(*heads: str | HeadSpec, **changes) -> Model:
    return Model(EncoderConfig(**{**SMALL, **changes}), heads, labels=["a", "b", "c"]).eval()


def only_config(folder: Path, **changes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**BASE_UNCASED, **changes}))
    return folder


def rows(text: str) -> dict[str, str]:
    """The lines of a printed overview by their first words (up to two blanks)."""
    return {re.split(r"\s\s+", line.strip())[0]: line for line in text.splitlines() if line}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Overview:
    return describe(only_config(tmp_path_factory.mktemp("base")))


def test_bert_base_uncased_is_counted(base: Overview):
    assert base.parameters == 109_482_240
    assert sum(base.dropouts.values()) == 37
    assert base.norms == {"LayerNorm": 25}
    groups = {group.name: group.count for group in base.groups}
    assert groups == {"embeddings": 23_837_184, "12 blocks": 85_054_464, "pooler": 590_592}
    counts = {part.name: part.count for group in base.groups for part in group.parts}
    assert counts["word table"] == 30522 * 768
    assert counts["queries, keys, values"] + counts["attention output"] == 4 * 768**2 + 4 * 768
    assert base.weights == {}


def test_attention_has_as_many_parameters_with_any_number_of_heads(tmp_path: Path, base: Overview):
    for heads in (1, 3, 24):
        other = describe(only_config(tmp_path, num_attention_heads=heads))
        assert other.groups == base.groups
        assert len(other.head_columns) == heads
        assert "4 D² + 4 D = 2,362,368" in str(other)


def test_pretraining_heads_and_the_tied_decoder_once(tmp_path: Path, base: Overview):
    whole = describe(only_config(tmp_path, architectures=["BertForPreTraining"]))
    assert whole.outputs == ("mlm", "nsp")
    dense, norm, bias = 768 * 768 + 768, 2 * 768, 30522
    assert whole.parameters == base.parameters + dense + norm + bias + 2 * 768 + 2
    assert whole.norms == {"LayerNorm": 26}
    assert whole.dropouts == base.dropouts
    (line,) = whole.shared
    assert line.startswith("MLM decoder = word table")
    assert "= word table" in rows(str(whole))["decoder"]


def test_printed_it_says_what_a_printed_model_hides(base: Overview):
    lines = rows(str(base))
    assert "12 in each layer, of 64 numbers each (12 x 64 = 768)" in lines["attention heads"]
    assert "absolute: a learnt vector for each of 512 positions" in lines["positions"]
    assert "37 of rate 0.1" in lines["dropouts"]
    assert lines["total"].split() == ["total", "109,482,240", "100.0%", "438", "MB"]
    assert lines["head 11"].split()[2:] == ["704-767", "1472-1535", "2240-2303", "704-767"]
    assert max(map(len, str(base).splitlines())) <= 100


@settings(max_examples=15)
@given(data=st.data())
def test_the_parts_add_up_to_all_parameters(data: st.DataObject):
    draw = data.draw
    layers, heads = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4]))
    changes = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "position_embedding_type": draw(
            st.sampled_from(["absolute", "sinusoidal", "relative_key", "rotary", "alibi"])
        ),
        "embedding_size": draw(st.sampled_from([None, 8])),
        "type_vocab_size": draw(st.integers(0, 2)),
    }
    if draw(st.booleans()):
        changes["num_hidden_groups"] = draw(st.integers(1, layers))
        changes["inner_group_num"] = draw(st.integers(1, 2))
    if heads > 1 and draw(st.booleans()):
        changes["pruned_heads"] = {0: (draw(st.integers(0, heads - 1)),)}
    kinds = st.sampled_from(["mlm", "nsp", "classification", "tokens", "span", "discriminator"])
    with torch.device("meta"):
        model = small(*draw(st.lists(kinds, unique=True, max_size=2)), **changes)
    overview = describe(model, tokens=draw(st.integers(1, 9)))
    assert overview.parameters == sum(p.numel() for p in model.parameters())
    first = model.encoder.blocks[0].attention
    assert [row.head for row in overview.head_columns] == list(first.kept)
    assert overview.walk is not None
    legend_holds(overview)
    assert json.loads(json.dumps(overview.as_json()))["parameters"] == overview.parameters
    assert f"{overview.parameters:,}" in str(overview)


def legend_holds(overview: Overview) -> None:
    """Letters and sizes of every step say the same."""
    walk = overview.walk
    assert walk is not None
    for step in walk.steps:
        sizes = [
            math.prod(
                int(part) if part.isdigit() else walk.legend[part][0]
                for part in re.findall(r"\d+|[A-Z]'?", letters)
            )
            for letters in step.letters.split()
        ]
        assert tuple(sizes) == step.sizes, step


def test_a_family_with_narrow_words_bottlenecks_and_several_networks():
    model = small("mlm", embedding_size=8, mobile=Mobile(intra_bottleneck_size=12))
    overview = describe(model, tokens=5)
    assert overview.parameters == sum(p.numel() for p in model.parameters())
    legend_holds(overview)
    assert overview.norms == {"NoNorm": 3 * 8 + 1, "LayerNorm": 1}
    columns = overview.head_columns[1].columns
    assert columns == {
        "queries": ("query_key", 3, 5),
        "keys": ("query_key", 15, 17),
        "values": ("value", 3, 5),
    }
    assert "feed-forward 3 down" in rows(str(overview))


def test_distances_and_a_convolution():
    settings = Disentangled(position_buckets=4, norm_rel_ebd=True, conv_kernel_size=3)
    for own in (settings, replace(settings, share_att_key=True, pos_att_type=("p2c",))):
        with torch.device("meta"):
            model = small("mlm", embedding_size=8, disentangled=own)
        overview = describe(model, tokens=5)
        assert overview.parameters == sum(p.numel() for p in model.parameters())
        legend_holds(overview)
        assert ("keys of distances" in rows(str(overview))) != own.share_att_key
        assert f"/ sqrt({1 + len(own.pos_att_type)} K) and" in " ".join(str(overview).split())
        assert "8 vectors, which far distances share" in str(overview)
        assert "of 3 neighbouring embeddings" in str(overview)


def test_what_a_decoder_does_is_shown():
    model = small("mlm", is_decoder=True, add_cross_attention=True)
    overview = describe(model, tokens=7)
    legend_holds(overview)
    steps = {step.name: step.sizes for step in overview.walk.steps}  # type: ignore[union-attr]
    assert steps["cross weights"] == (4, 7, 5)
    assert steps["cross keys"] == (5, 4, 6)
    assert "a token attends to itself and those before it, and to an encoder" in str(overview)


def test_chunks_of_the_feed_forward_network_are_told():
    overview = describe(small(chunk_size_feed_forward=2), tokens=7)
    assert overview.walk is not None
    steps = {step.name: (step.letters, step.sizes) for step in overview.walk.steps}
    assert steps["feed-forward up"] == ("chunk I", (2, 40))
    assert steps["block 0"] == ("T D", (7, 24))


def test_layers_that_share_blocks_and_heads_that_are_gone():
    shared = describe(small("mlm", num_hidden_layers=6, num_hidden_groups=1))
    assert shared.shared == (
        "MLM decoder = word table (tied, counted once)",
        "6 layers run 1 block",
    )
    pruned = describe(small(pruned_heads={0: (1,), 2: (0, 3)}))
    assert [group.name for group in pruned.groups[1:4]] == ["block 0", "block 1", "block 2"]
    assert pruned.as_json()["heads"] == [3, 4, 2]
    assert "block 0 without 1; block 2 without 0, 3" in str(pruned)
    alike = describe(small(pruned_heads={1: (0,)}))
    assert [group.name for group in alike.groups[1:3]] == ["blocks 0, 2", "block 1"]
    assert alike.groups[1].times == 2
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


def test_the_columns_of_a_head_make_its_queries_keys_and_values():
    model = small(pruned_heads={0: (2,)})
    attention = model.encoder.blocks[0].attention
    hidden = torch.randn(5, 24)
    theirs = dict(zip(("queries", "keys", "values"), attention.project(hidden), strict=True))
    for place, row in enumerate(describe(model).head_columns):
        for kind, (matrix, first, last) in row.columns.items():
            linear = getattr(attention, matrix)
            part = hidden @ linear.weight[first : last + 1].T + linear.bias[first : last + 1]
            torch.testing.assert_close(part, theirs[kind][:, place])


def test_a_model_is_left_as_it_was():
    model = small("mlm").train()
    model.encoder.blocks[1].eval()
    state = torch.random.get_rng_state()
    first = describe(model, tokens=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training
    assert not model.encoder.blocks[1].training
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "attend" not in vars(module)
    assert describe(model, tokens=4) == first


def test_a_text_is_cut_by_its_tokenizer(tmp_path: Path):
    tokenizer = Tokenizer.blank([*SPECIAL_TOKENS, *(f"w{i}" for i in range(45))])
    save(small("mlm"), tmp_path, tokenizer=tokenizer)
    overview = describe(tmp_path, "w1 w7 unknown")
    assert overview.walk is not None
    assert overview.walk.tokens == ("[CLS]", "w1", "w7", "[UNK]", "[SEP]")
    assert overview.walk.ids == (2, 6, 12, 1, 3)
    assert overview.walk.steps[0].sizes == (5,)
    assert overview.walk.steps[-1].sizes == (5, 50)
    assert overview.weights == {
        "model.safetensors": (tmp_path / "model.safetensors").stat().st_size
    }
    assert overview.tokenizer == "blank, 50 tokens"
    assert describe(small("mlm"), "w1 w7 unknown", tokenizer=tokenizer).walk == overview.walk
    with pytest.raises(InputError, match=r"the text has 17 tokens, \[CLS\] and \[SEP\] among them"):
        describe(tmp_path, "w1 " * 15)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "damaged" in (describe(tmp_path).tokenizer or "")
    with pytest.raises(InputError, match="damaged"):
        describe(tmp_path, "w1")


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("none", {}, "no such folder"),
        ("empty", {}, r"config\.json; is .* a model folder"),
        ("config", {"text": "a text"}, "contains no tokenizer"),
        ("config", {"tokens": 513}, "tokens is 513; the model takes from 1 to 512"),
        ("config", {"tokens": 0}, "the model takes from 1 to 512"),
        ("config", {"text": "a text", "tokens": 3}, "give one of them"),
        (small(), {"text": "a text"}, "needs a tokenizer"),
        (torch.nn.Linear(2, 2), {}, "Linear is not a model of OwnBERT"),
    ],
)
def test_what_cannot_be_described(model: Any, options: dict, message: str, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    only_config(tmp_path / "config")
    with pytest.raises(InputError, match=message):
        describe(tmp_path / model if isinstance(model, str) else model, **options)


def test_a_printed_model_shows_heads_ties_and_folded_blocks():
    shown = repr(small("mlm"))
    assert "bert: heads=4 x 6, positions=absolute, parameters=" in shown
    assert "tied: heads.mlm.decoder.weight = encoder.embeddings.word.weight" in shown
    assert "(0-2): 3 x EncoderBlock(" in shown
    assert "columns of qkv: (queries, keys, values) x 4 heads x 6" in shown
    assert "positions=absolute, longest=16" in shown
    assert "shared: they run 1 block" in repr(small(num_hidden_groups=1))
    pruned = repr(small(pruned_heads={1: (0, 2)}))
    assert "pruned_heads={1: (0, 2)}" in pruned
    assert "heads=2, head_size=6, kept=[1, 3]" in pruned
    assert "3 x" not in pruned


def test_a_pretrained_folder_at_80_columns(pretrained: Path):
    done = run_cli("describe", pretrained, "--text", "red1 w2 [MASK]")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout  # no figure was cut off
    assert any(line.startswith("attention weights  H x T x T  2 x 5 x 5") for line in lines)
    assert any(line.startswith("mlm logits") for line in lines)
    assert "[MASK] 4" in done.stdout


def test_json(pretrained: Path):
    found = json.loads(run_cli("describe", pretrained, "--tokens", "6", "--json").stdout)
    assert found["heads"] == [2, 2]
    size = SIZES["tiny"][1] // 2
    assert found["head_size"] == size
    assert found["parameters"] == sum(group["count"] for group in found["groups"])
    assert found["float32_bytes"] == 4 * found["parameters"]
    steps = {step["name"]: step["sizes"] for step in found["walk"]["steps"]}
    assert steps["queries"] == [6, 2, size]


def test_mistakes_get_one_line(pretrained: Path, tmp_path: Path):
    for arguments, said in {
        (tmp_path / "none",): "no such folder",
        (tmp_path,): "config.json; is",
        (pretrained, "--tokens", "0"): "1 or more",
        (pretrained, "--tokens", "129"): "the model takes from 1 to 48",
        (pretrained, "--text", "w1 " * 200): "the text has 202 tokens",
        (pretrained, "--text", "w1", "--tokens", "2"): "give one of them",
    }.items():
        assert said in refusal("describe", *arguments)
