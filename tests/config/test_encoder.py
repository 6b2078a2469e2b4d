"""Sizes and structure: what goes together and what does not."""

import dataclasses

import pytest

from ownbert.config.encoder import SIZES, EncoderConfig
from ownbert.config.variants import Mobile
from ownbert.exceptions import InputError


@pytest.mark.parametrize(
    ("size", "layers", "hidden", "heads"),
    [
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    ],
)
@pytest.mark.usefixtures("published_sizes")
def test_the_published_sizes(size: str, layers: int, hidden: int, heads: int):
    config = EncoderConfig.of_size(size, vocab_size=100)
    assert (config.num_hidden_layers, config.hidden_size) == (layers, hidden)
    assert (config.num_attention_heads, config.intermediate_size) == (heads, 4 * hidden)
    assert config.head_size == 64
    assert len(SIZES) == 6


def test_the_defaults_are_bert_base():
    assert EncoderConfig(vocab_size=30522) == EncoderConfig.of_size("base", vocab_size=30522)


def test_changes_replace_any_field():
    config = EncoderConfig.of_size("tiny", vocab_size=9, hidden_act="relu", pad_token_id=8)
    assert (config.hidden_act, config.pad_token_id) == ("relu", 8)


def test_a_config_does_not_change():
    config = EncoderConfig(vocab_size=9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 10  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        EncoderConfig(9)  # pyright: ignore[reportCallIssue]


REFUSED = [
    ({"hidden_size": 100}, "hidden_size 100 .* num_attention_heads 12"),
    (
        {"hidden_act": "swish2"},
        "hidden_act 'swish2' is not known; use one of gelu, gelu_new, gelu_fast",
    ),
    ({"vocab_size": 0}, "vocab_size is 0"),
    ({"num_hidden_layers": 2.0}, r"num_hidden_layers is 2\.0; it must be a whole number"),
    ({"hidden_size": "768"}, "hidden_size is '768'; it must be a whole number"),
    ({"type_vocab_size": True}, "type_vocab_size is True"),
    ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob is 1\.0; it must be in \[0, 1\)"),
    ({"attention_probs_dropout_prob": -0.1}, r"attention_probs_dropout_prob is -0\.1"),
    ({"attention_probs_dropout_prob": float("nan")}, "attention_probs_dropout_prob is nan"),
    ({"layer_norm_eps": 0.0}, r"layer_norm_eps is 0\.0; it must be more than 0"),
    ({"initializer_range": -1.0}, r"initializer_range is -1\.0"),
    ({"pad_token_id": 20}, "pad_token_id 20 is outside vocab_size 20"),
    ({"pad_token_id": -1}, "pad_token_id -1 is outside"),
    ({"pad_token_id": None}, "pad_token_id None is outside"),
    (
        {"position_embedding_type": "relative"},
        "'relative' is not known; use one of absolute, sinus",
    ),
    (
        {"position_embedding_type": "rotary", "hidden_size": 15, "num_attention_heads": 3},
        "'rotary' needs an even head size; hidden_size 15 / num_attention_heads 3",
    ),
    ({"position_offset": 512}, "position_offset 512 leaves no positions of .* 512"),
    ({"position_offset": -1}, "position_offset is -1; it must be a whole number, at least 0"),
    ({"chunk_size_feed_forward": -1}, "chunk_size_feed_forward is -1"),
    ({"embedding_size": 0}, "embedding_size is 0; it must be a whole number, at least 1"),
    ({"add_cross_attention": True}, "add_cross_attention needs is_decoder true"),
    ({"num_hidden_groups": 13}, "num_hidden_groups 13 is more than num_hidden_layers 12"),
    ({"pruned_heads": {12: (0,)}}, r"pruned_heads names layer 12; the layers are 0\.\.11"),
    ({"pruned_heads": {0: (3, 12)}}, r"layer 0 has no head 12; .* 0\.\.11"),
    ({"pruned_heads": {"1": (-1,)}}, "layer 1 has no head -1"),
    ({"pruned_heads": {2: range(12)}}, "layer 2 would lose all of its heads"),
]


def test_pruned_heads_are_sorted_whole_numbers():
    config = EncoderConfig(vocab_size=9, pruned_heads={"3": [5, 1, 5], 0: (), 1: (0,)})
    assert config.pruned_heads == {1: (0,), 3: (1, 5)}
    assert list(config.pruned_heads) == [1, 3]
    assert config.kept_heads(3) == (0, 2, 3, 4, *range(6, 12))
    assert config.kept_heads(0) == tuple(range(12))


def test_sizes_that_follow_from_others():
    config = EncoderConfig(vocab_size=9, position_offset=2, max_position_embeddings=514)
    assert (config.max_length, config.longest, config.num_blocks) == (512, 512, 12)
    relative = EncoderConfig(vocab_size=9, position_embedding_type="relative_key")
    assert (relative.max_length, relative.longest) == (None, 512)
    shared = EncoderConfig(vocab_size=9, num_hidden_groups=2, inner_group_num=3)
    assert shared.num_blocks == 6
    narrow = EncoderConfig(vocab_size=9, num_attention_heads=4, mobile=Mobile())
    assert (narrow.attention_size, narrow.head_size) == (128, 32)
    wide = EncoderConfig(vocab_size=9, mobile=Mobile(use_bottleneck=False))
    assert wide.attention_size == 768


def test_a_bottleneck_has_its_own_rules():
    with pytest.raises(InputError, match=r"intra_bottleneck_size 128 .* num_attention_heads 12"):
        EncoderConfig(vocab_size=9, mobile=Mobile())
    with pytest.raises(InputError, match="num_feedforward_networks is 0"):
        Mobile(num_feedforward_networks=0)
    with pytest.raises(
        InputError, match="normalization_type 'batch' is not known; use one of no_norm"
    ):
        Mobile(normalization_type="batch")


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_be_is_named(changes: dict, message: str):
    with pytest.raises(InputError, match=message):
        EncoderConfig(**{"vocab_size": 20, **changes})


def test_an_unknown_size_is_refused():
    with pytest.raises(InputError, match="size 'huge' is not known; use one of tiny, mini"):
        EncoderConfig.of_size("huge", vocab_size=9)
