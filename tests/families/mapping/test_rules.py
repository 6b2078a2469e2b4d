"""The mapping of names: written once, reversible, nothing lost."""

from dataclasses import replace

import pytest
import torch

from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import Disentangled, Mobile
from ownbert.exceptions import InputError
from ownbert.families import FAMILIES, family_of
from ownbert.families.mapping.family import Family
from ownbert.families.mapping.weight_map import (
    OWN_TENSOR,
    Drop,
    Fuse,
    Make,
    Rename,
    Rule,
    Tie,
    head_of,
)
from ownbert.nn.model import Model
from support.tiny import CONFIG

BERT = FAMILIES["bert"]
HEADS = ("mlm", "nsp", "classification")
LABELS = ("a", "b")

# What each family must be given, so that its format has a word for the structure.
STRUCTURE = {
    "albert": {"embedding_size": 4, "num_hidden_groups": 1},
    "distilbert": {"type_vocab_size": 0},
    "electra": {"embedding_size": 4},
    "ernie": {"task_type_vocab_size": 3},
    "mobilebert": {"embedding_size": 4, "mobile": Mobile(intra_bottleneck_size=4)},
    "modernbert": {"local_attention": 4, "local_rotary_base": 10_000.0},
    "t5": {
        "head_width": 3,
        "gated_feed_forward": True,
        "attention_probs_dropout_prob": CONFIG.hidden_dropout_prob,
    },
    "deberta-v2": {"disentangled": Disentangled(position_buckets=4, conv_kernel_size=3)},
}


def numbered(model: Model) -> dict[str, torch.Tensor]:
    """The parameters, every number in them another."""
    start = 0
    for parameter in model.parameters():
        parameter.data = torch.arange(start, start + parameter.numel()).view_as(parameter).float()
        start += parameter.numel()
    return {name: p.data for name, p in model.named_parameters()}


def tensors(bare: bool = False) -> dict[str, torch.Tensor]:
    """A checkpoint of theirs with every head."""
    model = Model(CONFIG, HEADS, labels=LABELS)
    return BERT.weight_map.to_theirs(numbered(model), CONFIG, bare=bare)


def read(theirs: dict[str, torch.Tensor], **options) -> tuple[dict[str, torch.Tensor], list[str]]:
    return BERT.weight_map.to_ours(theirs, CONFIG, HEADS, **options)


def config_of(family: Family) -> EncoderConfig:
    return replace(CONFIG, **{**STRUCTURE.get(family.model_type, {}), **family.fixed})


def test_every_tensor_of_a_model_has_a_name_of_theirs():
    model = Model(CONFIG, HEADS, labels=LABELS)
    values = sum(p.numel() for p in model.parameters())
    assert sum(t.numel() for t in tensors().values()) == values
    ours, problems = read(tensors())
    assert problems == []
    assert ours.keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_there_and_back(family: Family):
    config = config_of(family)
    for head in family.architectures.values():
        kinds = [spec.kind for spec in head.heads]
        model = Model(config, head.heads, pooler=head.pooler, labels=LABELS)
        ours = numbered(model)
        for bare in (True, False):
            theirs = family.weight_map.to_theirs(ours, config, bare=bare)
            assert sum(t.numel() for t in theirs.values()) == sum(t.numel() for t in ours.values())
            assert not any(name.startswith(OWN_TENSOR) for name in theirs)
            again, problems = family.weight_map.to_ours(theirs, config, kinds)
            assert problems == []
            assert again.keys() == ours.keys()
            assert all(torch.equal(again[name], ours[name]) for name in ours)


def test_queries_keys_and_values_keep_their_order():
    theirs = tensors()
    name = "bert.encoder.layer.1.attention.self."
    ours, _ = read(theirs)
    fused = ours["encoder.blocks.1.attention.qkv.weight"]
    for third, part in zip(fused.chunk(3), ("query", "key", "value"), strict=True):
        assert torch.equal(third, theirs[f"{name}{part}.weight"])


def test_a_prefix_may_be_there_or_not():
    theirs = tensors()
    assert "bert.pooler.dense.weight" in theirs
    bare = tensors(bare=True)
    assert not any(name.startswith("bert.") for name in bare)
    first, _ = read(theirs)
    second, problems = read(bare)
    assert problems == []
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_names_of_long_ago():
    theirs = tensors()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in theirs.items()
    }
    assert old.keys() != theirs.keys()
    old["bert.embeddings.position_ids"] = torch.arange(6)[None]
    ours, problems = read(old)
    assert problems == []
    expected, _ = read(theirs)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_a_tied_tensor_must_be_equal():
    theirs = tensors()
    words = theirs["bert.embeddings.word_embeddings.weight"]
    bias = theirs["cls.predictions.bias"]
    tied = {"cls.predictions.decoder.weight": words, "cls.predictions.decoder.bias": bias}
    ours, problems = read(theirs | tied)
    assert problems == []
    assert "heads.mlm.decoder.weight" not in ours
    for name, tensor in tied.items():
        _, problems = read(theirs | tied | {name: tensor + 1})
        assert len(problems) == 1
        assert problems[0].startswith(f"tensor {name} differs from")


def test_one_of_two_tied_tensors_is_enough():
    theirs = tensors()
    bias = theirs.pop("cls.predictions.bias")
    ours, problems = read(theirs | {"cls.predictions.decoder.bias": bias})
    assert problems == []
    assert torch.equal(ours["heads.mlm.decoder.bias"], bias)


def test_what_is_wrong_is_named():
    theirs = tensors()
    key = "bert.encoder.layer.0.attention.self.key.weight"
    without = {name: tensor for name, tensor in theirs.items() if name != key}
    assert read(without)[1] == [f"missing tensor {key}"]
    for shape in [(8, 3), (4, 8), ()]:
        problems = read(theirs | {key: torch.zeros(shape)})[1]
        assert len(problems) == 1
        assert key in problems[0]
        assert problems[0].endswith("must be of one shape")
    more = {"bert.encoder.layer.2.output.dense.bias": torch.zeros(8), "lstm.weight": torch.ones(1)}
    assert read(theirs | more)[1] == [f"unexpected tensor {name}" for name in more]
    twice = {"pooler.dense.bias": torch.zeros(8)}
    assert read(theirs | twice)[1] == ["tensor bert.pooler.dense.bias is there twice"]


def test_heads_that_are_not_asked_for():
    theirs = tensors()
    _, problems = BERT.weight_map.to_ours(theirs, CONFIG, ["mlm"])
    assert sorted(problems) == [
        f"unexpected tensor {name}"
        for name in (
            "classifier.bias",
            "classifier.weight",
            "cls.seq_relationship.bias",
            "cls.seq_relationship.weight",
        )
    ]
    ours, problems = BERT.weight_map.to_ours(theirs, CONFIG, ["mlm"], other_heads=True)
    assert problems == []
    assert not any(name.startswith(("heads.nsp", "heads.classification")) for name in ours)
    stray = theirs | {"weather.weight": torch.ones(1)}
    problems = BERT.weight_map.to_ours(stray, CONFIG, ["mlm"], other_heads=True)[1]
    assert problems == ["unexpected tensor weather.weight"]


def test_two_heads_of_one_name():
    """Classification and tokens are both called classifier; the first that is asked for has it."""
    model = Model(CONFIG, ["classification", "tokens"], labels=LABELS)
    theirs = BERT.weight_map.to_theirs(numbered(model), CONFIG, bare=False, kinds=["tokens"])
    own = OWN_TENSOR + "heads.classification.dense.weight"
    assert torch.equal(theirs["classifier.weight"], model.heads["tokens"].dense.weight)
    assert torch.equal(theirs[own], model.heads["classification"].dense.weight)
    for kinds in (["tokens", "classification"], ["classification", "tokens"]):
        ours, problems = BERT.weight_map.to_ours(theirs, CONFIG, kinds)
        assert problems == []
        assert all(torch.equal(ours[n], p) for n, p in model.named_parameters())


def test_their_names_for_messages():
    norm = BERT.weight_map.their_name("encoder.embeddings.norm.bias", CONFIG)
    assert norm == "bert.embeddings.LayerNorm.bias"
    query = BERT.weight_map.their_name("encoder.blocks.1.attention.qkv.bias", CONFIG)
    assert query.split(", ")[2] == "bert.encoder.layer.1.attention.self.value.bias"
    assert BERT.weight_map.their_name("of.nobody", CONFIG) == "of.nobody"


def without_head(rule: Rule) -> bool:
    return head_of(rule) is None


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_rule_is_used_once(family: Family):
    every = [rule for rule in family.weight_map.rules if isinstance(rule, Rename | Fuse)]
    # Those for some configs are other names of a tensor.
    named = [rule for rule in every if isinstance(rule, Fuse) or rule.when is None]
    assert len({rule.ours for rule in named}) == len(named)
    shared = [rule.theirs for rule in filter(without_head, named)]
    assert len(set(shared)) == len(shared)
    renamed = {rule.theirs for rule in every if isinstance(rule, Rename)}
    assert all(rule.to in renamed for rule in family.weight_map.rules if isinstance(rule, Tie))
    assert all(rule.reason for rule in family.weight_map.rules if isinstance(rule, Drop))
    made = {
        rule.theirs.rsplit(".", 1)[0] for rule in family.weight_map.rules if isinstance(rule, Make)
    }
    assert made <= {r.removesuffix(".weight") for r in renamed}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_config_there_and_back(family: Family):
    config = config_of(family)
    if "pruned_heads" in family.defaults:
        config = replace(config, pruned_heads={0: (1,)})
    offset = family.read_config({"vocab_size": 11, "pad_token_id": 0}).position_offset
    config = replace(config, position_offset=offset)
    assert family.read_config(family.write_config(config)) == config
    if "position_embedding_type" in family.fixed or config.disentangled is not None:
        return
    for kind in ("sinusoidal", "rotary", "alibi"):
        other = replace(config, position_embedding_type=kind)
        said = family.write_config(other)
        assert family.read_config(said) == other
        assert said["model_type"].startswith("ownbert-") == (kind != "sinusoidal")


MODERN = {**STRUCTURE["modernbert"], **FAMILIES["modernbert"].fixed}
T5 = {**STRUCTURE["t5"], **FAMILIES["t5"].fixed}
DISENTANGLED = STRUCTURE["deberta-v2"]
NOT_SAID = [
    ("bert", {"embedding_size": 4}, "bert has no key for embedding_size 4"),
    ("bert", {"position_offset": 2}, "bert has no key for position_offset 2"),
    ("bert", {"mobile": Mobile(intra_bottleneck_size=4)}, "bert has no key for mobile"),
    ("roberta", {"position_offset": 2}, "roberta has no key for position_offset 2"),
    ("albert", {"num_hidden_groups": 1}, "albert needs embedding_size"),
    ("albert", {"embedding_size": 4}, "albert needs num_hidden_groups"),
    ("distilbert", {}, "distilbert has no key for layer_norm_eps|type_vocab_size 2"),
    ("electra", {"embedding_size": 8}, "electra has no key for embedding_size 8"),
    ("mobilebert", {}, "mobilebert needs a config with mobile="),
    ("deberta-v2", {}, "deberta-v2 needs a config with disentangled="),
    ("bert", {"disentangled": Disentangled()}, "bert has no key for disentangled"),
    ("deberta-v2", {**DISENTANGLED, "norm_first": True}, "no key for norm_first True"),
    ("modernbert", {}, "modernbert needs a config with local_attention="),
    ("modernbert", {**MODERN, "pruned_heads": {0: (1,)}}, "modernbert cannot be pruned"),
    ("modernbert", {**MODERN, "position_embedding_type": "alibi"}, "no key for position_embedding"),
    ("modernbert", {**MODERN, "output_bias": False}, "no key for output_bias False"),
    ("t5", {"norm_first": True}, "t5 needs d_kv"),
    ("t5", {**T5, "hidden_dropout_prob": 0.3}, "no key for attention_probs_dropout_prob"),
    ("t5", {**T5, "norm_type": "layer_norm"}, "no key for norm_type"),
    ("t5", {**T5, "pruned_heads": {0: (1,)}}, "t5 cannot be pruned"),
    ("modernbert", {**MODERN, "norm_first": False, "first_norm": True}, "no key for norm_first"),
]


@pytest.mark.parametrize(("model_type", "changes", "message"), NOT_SAID)
def test_what_a_format_has_no_word_for(model_type: str, changes: dict, message: str):
    with pytest.raises(InputError, match=message):
        FAMILIES[model_type].write_config(replace(CONFIG, **changes))


NOT_DONE = [
    ("albert", {"is_decoder": True}, "is_decoder is True; it must be False"),
    ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings is False; it must be True"),
    ("deberta-v2", {"position_embedding_type": "relative_key"}, "is 'relative_key'; it must be"),
    ("deberta-v2", {"pruned_heads": {"0": [1]}}, "pruned_heads is .*; it must be None or {}"),
    ("deberta-v2", {"conv_kernel_size": 2}, "conv_kernel_size is 2; it must be an odd number"),
    ("deberta-v2", {"position_buckets": "many"}, "position_buckets is 'many'; it must be a whole"),
    ("distilbert", {"position_embedding_type": "relative_key"}, "is 'relative_key'; it must be"),
    ("electra", {"summary_type": "mean"}, "summary_type is 'mean'; it must be 'first'"),
    ("electra", {"summary_first_dropout": 0.1}, r"summary_first_dropout is 0\.1"),
    ("mobilebert", {"normalization_type": "none"}, "normalization_type 'none' is not known"),
    (
        "mobilebert",
        {"classifier_activation": "gelu"},
        "classifier_activation is 'gelu'; it must be",
    ),
    ("modernbert", {"position_embedding_type": "relative_key"}, "is 'relative_key'; it must be"),
    ("modernbert", {"pruned_heads": {"0": [1]}}, "pruned_heads is .*; it must be None or {}"),
    ("modernbert", {"rope_scaling": {"type": "linear"}}, "rope_scaling is .*; it must be None"),
    (
        "modernbert",
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
        "full_attention.rope_type is 'yarn'; it must be one of default",
    ),
    (
        "modernbert",
        {"layer_types": ["sliding_attention", "full_attention"]},
        "layer_types must have full_attention in the first layer and then at equal distances",
    ),
    ("modernbert", {"local_attention": -2}, "local_attention is -2; it must be a whole number"),
    ("modernbert", {"global_attn_every_n_layers": 0}, "it must be a whole number, at least 1"),
    ("modernbert", {"global_rope_theta": 0.0}, r"rotary_base is 0\.0; it must be more than 1"),
    ("t5", {"feed_forward_proj": "gated-sin"}, "feed_forward_proj 'gated-sin' is not known"),
    ("t5", {"pruned_heads": {"0": [1]}}, "pruned_heads is .*; it must be None or {}"),
    ("t5", {"relative_attention_num_buckets": 2}, "relative_buckets must be at least 4"),
    ("t5", {"relative_attention_max_distance": 16}, "half of it less"),
    ("t5", {"num_heads": 5000}, "num_attention_heads 5000 with 64 channels each exceed"),
    ("roberta", {"layer_norm_eps": "small"}, "layer_norm_eps is 'small'; it must be a number"),
]


@pytest.mark.parametrize(("model_type", "values", "message"), NOT_DONE)
def test_a_key_that_would_change_the_result_is_refused(model_type: str, values: dict, message: str):
    family = FAMILIES[model_type]
    family.read_config({"vocab_size": 9, "pad_token_id": 0})
    with pytest.raises(InputError, match=message):
        family.read_config({"vocab_size": 9, "pad_token_id": 0, **values})


def test_keys_of_other_families_are_not_looked_at():
    values = {"vocab_size": 9, "embedding_size": 4, "num_hidden_groups": 1, "mobile": {}}
    assert BERT.read_config(values) == BERT.read_config({"vocab_size": 9})


def test_rates_and_activations_of_heads():
    values = {"seq_classif_dropout": 0.4, "qa_dropout": 0.3}
    distilbert, electra = FAMILIES["distilbert"], FAMILIES["electra"]
    assert distilbert.spec_of("choice", values).dropout == 0.4
    assert distilbert.spec_of("span", values).dropout == 0.3
    assert distilbert.spec_of("nsp", values) == HeadSpec("nsp")
    spec = electra.spec_of("choice", {"summary_activation": None, "summary_last_dropout": 0.2})
    assert (spec.dense, spec.dropout) == ("linear", 0.2)
    with pytest.raises(InputError, match="summary_activation 'sin' is not known"):
        electra.spec_of("choice", {"summary_activation": "sin"})
    assert FAMILIES["roberta"].spec_of("choice", {"classifier_dropout": 0.4}).dropout is None
    modern = FAMILIES["modernbert"]
    values = {"classifier_pooling": "mean", "classifier_activation": "relu", "decoder_bias": False}
    spec = modern.spec_of("classification", values)
    assert (spec.pooling, spec.dense, spec.dense_bias) == ("mean", "relu", False)
    assert modern.writes_head(spec)["classifier_pooling"] == "mean"
    assert not modern.spec_of("mlm", values).output_bias
    with pytest.raises(
        InputError, match="classifier_pooling 'max' is not known; use one of cls, mean"
    ):
        modern.spec_of("choice", {"classifier_pooling": "max"})
    with pytest.raises(InputError, match="classifier_activation 'sin' is not known"):
        modern.spec_of("mlm", {"classifier_activation": "sin"})


def test_an_unknown_family_is_refused():
    assert family_of("bert", "here") is BERT
    assert family_of("ownbert-roberta", "here") is FAMILIES["roberta"]
    with pytest.raises(
        InputError, match=r"here: model_type 'gpt2' is not known; it must be one of bert"
    ):
        family_of("gpt2", "here")


def test_keys_of_transformers_5_for_modernbert():
    """It writes the kind of each layer, and the bases of rotary positions per kind."""
    family, layers = FAMILIES["modernbert"], ["full_attention", "sliding_attention"]
    read = family.read_config(
        {
            "vocab_size": 9,
            "num_hidden_layers": 5,
            "pad_token_id": 0,
            "layer_types": [*layers, *layers, "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
            },
        }
    )
    assert read.global_attn_every_n_layers == 2
    assert (read.rotary_base, read.local_rotary_base) == (50, 7)
    written = family.write_config(read)
    assert (written["global_rope_theta"], written["local_rope_theta"]) == (50, 7)
    alone = {"vocab_size": 9, "pad_token_id": 0, "layer_types": ["full_attention"] * 3}
    assert family.read_config(alone).global_attn_every_n_layers == 1
