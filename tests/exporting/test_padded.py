"""The padded graph computes what Transformers' classes of every family and head compute."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ownbert.batches.batch import from_padded
from ownbert.checkpoint import load
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import Disentangled
from ownbert.exceptions import InputError
from ownbert.exporting.padded import PaddedModel
from ownbert.nn.model import Model
from support.floats import assert_close
from support.parity_models import ALL, BASES, padded, their_model
from support.tiny import CONFIG, LABELS

LENGTHS = (6, 1, 4)
POOLINGS = ("first", "mean", "max", "attention")
POSITIONS = ("sinusoidal", "relative_key", "relative_key_query", "rotary", "alibi")


def inputs(graph: PaddedModel, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    types = torch.arange(ids.shape[1]).expand_as(ids) % 2 * mask
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: given[name] for name in graph.input_names}


def against_packed(config: EncoderConfig, head: str | HeadSpec) -> None:
    """Compare with the packed model on texts of several lengths."""
    torch.manual_seed(0)
    model = Model(config, [head], labels=LABELS).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    graph = PaddedModel(model)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(1, config.vocab_size, mask.shape) * mask
    given = inputs(graph, ids, mask)
    batch, _ = from_padded(*given.values())
    with torch.no_grad():
        ours, theirs = graph(**given), next(iter(model(batch).logits.values()))
    found = ours["logits"]
    assert_close(found[mask.bool()] if found.shape[:2] == mask.shape else found, theirs)


EXPORTED = [(kind, name) for kind, name in ALL if kind != "xlnet"]
QUICK = [*BASES, *((kind, name) for kind, name in ALL if kind == "bert")]


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [one if one in QUICK else pytest.param(*one, marks=pytest.mark.slow) for one in EXPORTED],
)
def test_every_family_and_head(model_type: str, architecture: str, tmp_path: Path):
    theirs = their_model(model_type, architecture)
    theirs.save_pretrained(tmp_path)
    graph = PaddedModel(load(tmp_path))
    given = padded(theirs.config, architecture)
    keep = given["attention_mask"].bool()
    given = {name: given[name] for name in graph.input_names}
    if graph.choices:
        given = {name: tensor[:, None] for name, tensor in given.items()}
    with torch.no_grad():
        ours, expected = graph(**given), theirs(**given)
    for name, tensor in ours.items():
        pair = tensor, expected[name]
        assert_close(*(x[keep] if graph.per_token(name) else x for x in pair), name=name)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_text_of_padding_alone_has_numbers(pooling: str):
    """Engines fill their batches with such texts."""
    graph = PaddedModel(Model(CONFIG, [HeadSpec("classification", pooling=pooling)], labels=LABELS))
    ids = torch.tensor([[2, 5, 3], [0, 0, 0]])
    with torch.no_grad():
        logits = graph(**inputs(graph, ids, (ids > 0).long()))["logits"]
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings(pooling: str):
    against_packed(CONFIG, HeadSpec("classification", pooling=pooling, dense="tanh"))


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions(kind: str):
    config = EncoderConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=4 if kind.startswith("relative") else 6,
        position_embedding_type=kind,
    )
    against_packed(config, "tokens")


@pytest.mark.parametrize("causal", [False, True])
def test_a_decoder_sees_what_was_before(causal: bool):
    against_packed(EncoderConfig(**_fields(is_decoder=causal)), "mlm")


def test_local_attention_and_gates():
    fields = _fields(local_attention=2, global_attn_every_n_layers=2, gated_feed_forward=True)
    config = EncoderConfig(**{**fields, "position_embedding_type": "rotary", "rotary_base": 50.0})
    head = HeadSpec("tokens", dense="gelu", dense_bias=False, dense_norm=True)
    against_packed(config, head)


def test_distances_and_a_convolution():
    fields = _fields(embedding_size=6, position_embedding_type="none")
    settings = Disentangled(position_buckets=4, max_relative_positions=4, conv_kernel_size=3)
    for own in (settings, replace(settings, share_att_key=True, norm_rel_ebd=True)):
        against_packed(EncoderConfig(**{**fields, "disentangled": own}), "mlm")


def test_ngrams_of_token_ids():
    against_packed(CONFIG, HeadSpec("classification", ngrams=32))


def test_pruned_heads_stay_pruned():
    against_packed(EncoderConfig(**_fields(pruned_heads={0: (1,)})), "tokens")


def test_the_model_stays_as_it_was():
    model = Model(CONFIG, [HeadSpec("tokens", crf=True)], labels=LABELS).eval()
    before = {name: id(module) for name, module in model.named_modules()}
    graph = PaddedModel(model)
    assert {name: id(module) for name, module in model.named_modules()} == before
    mine = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in graph.parameters()} <= mine


@pytest.mark.parametrize("pooling", ["gru", "lstm"])
def test_what_needs_lengths_is_refused(pooling: str):
    spec = HeadSpec("classification", pooling=pooling)
    with pytest.raises(InputError, match="recurrent pooling"):
        PaddedModel(Model(CONFIG, [spec], labels=LABELS))


def _fields(**changed: object) -> dict:
    return {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__} | changed
