"""Attention that starts at neighbouring tokens."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert import learn_vocabulary, prepare, pretrain
from ownbert.batches.batch import Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.model import Model
from ownbert.pretraining.init_weights import start_at_neighbours

LENGTH, MASK = 60, 4
TINY = EncoderConfig.of_size("tiny", vocab_size=200, max_position_embeddings=LENGTH)


def new_model(config: EncoderConfig) -> Model:
    """With words as large as co-occurrences make them, and special tokens as they are."""
    torch.manual_seed(0)
    model = Model(config, pooler=False).eval()
    model.encoder.embeddings.word.weight.data[5:].normal_(0, 0.05)
    return model


def weights(model: Model) -> list[dict[int, float]]:
    """The mean weight, by the distance, of the tokens around a masked one, for every head of the
    first layer; in random words, each masked in turn."""
    found: list[dict[int, float]] = []
    away = range(-5, 6)
    rows = []
    for place in range(10, LENGTH - 10):
        ids = np.random.default_rng(place).integers(5, 200, LENGTH)
        ids[place] = MASK
        batch = pack([Example(ids, np.zeros_like(ids))])
        context = model.encoder.plain_context(batch)
        context.keep = frozenset({0})
        with torch.no_grad():
            (of_text,) = model(batch, context=context).attentions[0]
        rows.append(of_text[:, place, [place + d for d in away]])
    for head in torch.stack(rows).mean(0):
        found.append(dict(zip(away, head.tolist(), strict=True)))
    return found


def strongest(found: dict[int, float]) -> int:
    """The distance of the heaviest token but the masked one itself."""
    return max(found.keys() - {0}, key=lambda away: found[away])


@pytest.mark.parametrize(
    "changes",
    [{}, {"hidden_size": 96, "num_attention_heads": 6}, {"max_position_embeddings": 512}],
    ids=str,
)
def test_each_head_begins_at_one_distance(changes: dict):
    model = new_model(replace(TINY, **changes))
    before = weights(model)
    start_at_neighbours(model.encoder)
    for old, found, away in zip(before, weights(model), (-1, 1, -2, 2, -3, 3), strict=False):
        assert strongest(found) == away
        assert found[away] > 5 * old[away]
        assert found[away] > 3 * found[-away]


def test_later_layers_are_left_alone():
    model = new_model(replace(TINY, num_hidden_layers=4))
    before = [block.attention.qkv.weight.clone() for block in model.encoder.blocks]  # pyright: ignore
    start_at_neighbours(model.encoder)
    after = [block.attention.qkv.weight for block in model.encoder.blocks]  # pyright: ignore
    equal = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert equal == [False, True, True, True]
    values = 2 * TINY.hidden_size  # behind queries and keys
    assert torch.equal(before[0][values:], after[0][values:])


def test_a_decoder_begins_at_earlier_tokens():
    model = new_model(replace(TINY, is_decoder=True))
    start_at_neighbours(model.encoder)
    for found, away in zip(weights(model), (-1, -2), strict=True):
        assert strongest(found) == away


@pytest.mark.parametrize("kind", ["relative_key", "rotary", "sinusoidal"])
def test_without_a_table_of_positions_nothing_changes(kind: str):
    torch.manual_seed(0)
    encoder = Encoder(replace(TINY, position_embedding_type=kind))
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    start_at_neighbours(encoder)
    after = encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_of_narrow_words_only_the_table_is_set():
    model = new_model(replace(TINY, embedding_size=32))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start_at_neighbours(model.encoder)
    after = model.state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["encoder.embeddings.position.weight"]


@pytest.mark.slow
def test_a_word_that_stands_beside_is_found_sooner(tmp_path: Path):
    """Every word decides the next one and nothing else does: what stands in the text does not."""
    rng = np.random.default_rng(0)
    follows = rng.permutation(60)
    lines = []
    for _ in range(400):
        words: list[int] = []
        while len(words) < 24:
            first = int(rng.integers(60))
            words += [first, int(follows[first]) + 100]
        lines.append(" ".join(map(str, words)))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(lines) + "\n")
    learn_vocabulary(corpus, tmp_path / "words", kind="blank")
    prepare(corpus, tmp_path / "tokens", tokenizer=tmp_path / "words")
    losses = {}
    for init in ("neighbours", "random"):
        pretrain(
            tmp_path / "tokens",
            tmp_path / init,
            init_positions=init,
            objectives=("mlm",),
            max_steps=60,
            batch_tokens=1024,
            max_length=32,
            eval_every=60,
            quiet=True,
        )
        log = (tmp_path / init / "log.jsonl").read_text().splitlines()
        losses[init] = [row for row in map(json.loads, log) if row.get("evaluation")][-1][
            "mlm_loss"
        ]
    assert losses["neighbours"] < losses["random"] - 0.3
