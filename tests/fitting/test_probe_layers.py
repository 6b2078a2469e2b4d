"""A linear model on the vectors of each layer."""

from pathlib import Path

import numpy as np
import pytest

from ownbert import Embedder
from ownbert.inference.frozen_probe import LayerEmbedder, embed_rows
from support.cli import refusal, run_cli
from support.tiny import made

TEXTS = ["a b c", "d", "e f a b"]


def test_the_last_layer_has_the_vectors_of_the_embedder(tmp_path: Path):
    model = made(tmp_path / "model")
    embedder = LayerEmbedder(tmp_path / "model")
    layers = embedder.by_layer(embed_rows(embedder, [(text,) for text in TEXTS]))
    assert len(layers) == 1 + model.config.num_hidden_layers
    expected = Embedder(tmp_path / "model").encode(TEXTS)
    np.testing.assert_allclose(layers[-1], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(layers[0] - layers[-1]).max() > 0.1
    pairs = embedder.by_layer(embed_rows(embedder, [("a b", "c"), ("d", "e")]))
    one, two = (Embedder(tmp_path / "model").encode(own) for own in (["a b", "d"], ["c", "e"]))
    both = np.concatenate([one, two, np.abs(one - two), one * two], 1)
    np.testing.assert_allclose(pairs[-1], both, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("plots")
def test_on_the_command_line(tmp_path: Path):
    model, picture = tmp_path / "model", tmp_path / "layers.png"
    made(model)
    draw = np.random.default_rng(0)
    for name, count in (("train", 60), ("dev", 30)):
        rows = [(draw.choice(list("abcdef"), 2), int(draw.integers(2))) for _ in range(count)]
        lines = [f"{' '.join([*words, 'a' if label else 'f'])},{label}" for words, label in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    given = ["--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv"]
    done = run_cli("probe", model, *given, "--layers", "--png", picture)
    assert done.returncode == 0, done.stderr
    lines = [line.split("   ") for line in done.stdout.splitlines() if "accuracy" in line]
    assert [line[0].strip() for line in lines] == ["embeddings", "layer 1", "layer 2"]
    assert float(lines[0][1].removeprefix("accuracy ")) > 0.8  # single words tell the label
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("runs*"))
    assert "--layers writes no folder" in refusal(
        "probe", model, *given, "--layers", "-o", tmp_path / "out"
    )
    assert "-o is needed" in refusal("probe", model, *given)
    assert "the option --png requires --layers" in refusal(
        "probe", model, *given, "-o", tmp_path / "out", "--png", picture
    )
