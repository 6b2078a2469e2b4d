"""``probe``: a linear model on the vectors of a network, and of each of its layers."""

import csv
from pathlib import Path

import numpy as np
import pytest

import ownbert
from ownbert import Embedder
from ownbert.exceptions import InputError, InputWarning
from ownbert.fitting.network_probe import probe_layers
from ownbert.inference.opened_blend import LayerEmbedder, embed_rows
from support.cli import refusal, run_cli
from support.tiny import contents, made


def test_a_probe_is_made_evaluated_and_refused(topics: Path, pretrained: Path, tmp_path: Path):
    out = tmp_path / "probe"
    given = ("--train", topics / "train.csv", "--dev", topics / "dev.csv", "-o", out)
    done = run_cli("probe", pretrained, *given)
    assert done.returncode == 0, done.stderr
    assert "macro-F1" in done.stdout
    done = run_cli("evaluate", out, "--data", topics / "test.csv")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("macro-F1 ")[1].split()[0]) > 0.8
    done = run_cli("evaluate", out, "--data", topics / "test.csv", "--network")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "but no network" in done.stderr
    done = run_cli("probe", pretrained, *given)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "already contains a model" in done.stderr


def test_a_network_that_has_learnt_labels_is_named(topics: Path, classifier: Path):
    done = run_cli("probe", classifier, "--train", topics / "train.csv", "--layers")
    assert done.returncode == 0, done.stderr
    assert f"warning: {classifier} was trained on labels" in done.stderr


def test_a_probe_does_not_replace_its_network(topics: Path, tmp_path: Path):
    made(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="read by this command"):
        ownbert.probe(tmp_path, topics / "train.csv", tmp_path, overwrite=True)
    assert contents(tmp_path) == before


def test_a_probe_leaves_no_other_model_in_its_folder(topics: Path, tmp_path: Path):
    made(tmp_path / "model")
    made(tmp_path / "out", "classification")
    given = (tmp_path / "model", topics / "train.csv", tmp_path / "out")
    with pytest.raises(InputError, match="already contains a model"):
        ownbert.probe(*given)
    with pytest.warns(InputWarning, match="no word of these texts"):
        ownbert.probe(*given, overwrite=True)
    assert not {"config.json", "model.safetensors"} & {*contents(tmp_path / "out")}


def test_the_vector_of_a_long_text_is_the_mean_of_its_pieces(pretrained: Path):
    embedder = Embedder(pretrained)
    words = [f"w{i % 31}" for i in range(250)]
    pieces = [" ".join(words[i : i + 100]) for i in range(0, 250, 100)]
    (found,) = embed_rows(embedder, [(" ".join(words),)])
    np.testing.assert_allclose(found, embedder.encode(pieces).mean(0), atol=1e-5)
    short = " ".join(words[:50])
    np.testing.assert_allclose(
        embed_rows(embedder, [(short,)]), embedder.encode([short]), atol=1e-6
    )


def test_rows_of_a_group_are_held_out_together_and_the_latest_rows(
    pretrained: Path, tmp_path: Path
):
    rng = np.random.default_rng(2)
    labels = rng.permutation(["yes", "no"] * 12)  # by customer
    pairs = [(customer, day) for customer in range(24) for day in range(6)]
    rows = [(f"w{c} w{c} w{c} w{rng.integers(31)} w{d}", labels[c], c, d) for c, d in pairs]
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label", "customer", "day"), *rows])
    given = (pretrained, "--train", path, "-o", tmp_path / "probe", "--overwrite")
    alone, grouped = (run_cli("probe", *given, *more) for more in ((), ("--group", "customer")))
    accuracy = [float(each.stdout.split("accuracy ")[1].split()[0]) for each in (alone, grouped)]
    assert accuracy[0] > accuracy[1] + 0.1
    assert "several rows have the same 'customer'" in alone.stderr
    assert "groups: 24 in column 'customer'; the largest has 6 rows" in grouped.stderr
    layers, _ = probe_layers(pretrained, path, group="customer")
    assert all(accuracy[0] > layer.accuracy + 0.1 for layer in layers)
    later = run_cli("probe", *given, "--time-column", "day")
    assert "the 24 latest training rows: " in later.stdout
    both = ("--layers", "--time-column", "day", "--group", "customer")
    refused = run_cli("probe", pretrained, "--train", path, *both)
    assert (refused.returncode, "nothing to train on" in refused.stderr) == (2, True)
    with pytest.raises(InputError, match="has no column 'client'"):
        ownbert.probe(pretrained, path, tmp_path / "no", group="client")
    assert not (tmp_path / "no").exists()


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
