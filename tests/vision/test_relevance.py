"""Relevance: the formulas, the gradients beside Transformers', and that it finds what counts."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ownbert.batches.batch import from_padded
from ownbert.checkpoint import load, save
from ownbert.cli import main
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.inspect.explain.attribution import (
    attention_and_gradient,
    gradient_relevance,
    relevance,
    rollout,
)
from ownbert.nn.model import Model
from ownbert.vision import vit
from ownbert.vision.pixels import Processor
from ownbert.vision.relevance_maps import draw_relevance, over_patches
from support.floats import assert_close
from support.shared import made_once

LABELS = ("horizontal", "vertical", "checks", "diagonal")
SIDE, PATCH, SEED = 16, 4, 3


def maps(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 4, 4, generator=generator).softmax(-1) for _ in range(3)]


def test_rollout_is_the_product_of_the_layers():
    """Abnar and Zuidema 2020, equation 1, the last layer on the left."""
    steps = [0.5 * m.mean(0).numpy() + 0.5 * np.eye(4) for m in maps(0)]
    found = rollout(maps(0))
    assert_close(found.numpy(), steps[2] @ steps[1] @ steps[0], scale=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(4))


def test_relevance_is_that_of_the_paper():
    """Chefer, Gur and Wolf 2021, equations 5 and 6, number by number."""
    gradients = [m - 0.25 for m in maps(1)]
    wanted = np.eye(4)
    for attention, gradient in zip(maps(0), gradients, strict=True):
        step = np.zeros((4, 4))
        for h in range(2):
            for i in range(4):
                for j in range(4):
                    step[i, j] += max(0.0, float(attention[h, i, j] * gradient[h, i, j])) / 2
        wanted = wanted + step @ wanted
    assert_close(relevance(maps(0), gradients).numpy(), wanted, scale=0)


def randomized(model: Model) -> Model:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def tiny(**changes) -> Model:
    sizes = {"image_size": 8, "patch_size": 4, "channels": 1, "hidden_size": 8, "heads": 2}
    return vit.make_model(**{**sizes, "layers": 3, "labels": LABELS, **changes})


def assert_gradients_are_theirs(folder: Path, model: Model, batch, given: dict) -> None:
    transformers = pytest.importorskip("transformers")
    save(model, folder)
    name = {"vit": "ViTForImageClassification", "bert": "BertForSequenceClassification"}
    theirs = getattr(transformers, name[model.model_type]).from_pretrained(
        folder, attn_implementation="eager"
    )
    out = theirs.eval()(**given, output_attentions=True)
    wanted = torch.autograd.grad(out.logits[:, 2].sum(), out.attentions)
    kept = attention_and_gradient(model, batch, target=2)
    for i, gradient in enumerate(wanted):
        for b, attention in enumerate(kept.attentions[i]):
            size = len(attention[0])
            torch.testing.assert_close(attention, out.attentions[i][b, :, :size, :size].detach())
            found = kept.gradients[i][b]
            torch.testing.assert_close(found, gradient[b, :, :size, :size], atol=1e-5, rtol=1e-4)
            # After the last layer only the first token counts.
            assert found[:, 0].abs().max() > 1e-4


def test_gradients_of_a_model_of_pictures(tmp_path: Path):
    model = randomized(tiny())
    pixels = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    batch = vit.to_batch(pixels, model.config)
    assert_gradients_are_theirs(tmp_path, model, batch, {"pixel_values": pixels})


def test_gradients_of_a_model_of_words(tmp_path: Path):
    config = EncoderConfig(
        vocab_size=20,
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=8,
    )
    model = randomized(Model(config, [HeadSpec("classification")], labels=LABELS))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    ids = torch.randint(1, 20, (2, 5), generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids * mask, "attention_mask": mask}
    batch = from_padded(ids * mask, mask)[0]
    assert_gradients_are_theirs(tmp_path, model, batch, given)
    assert [len(row) for row in gradient_relevance(model, batch)] == [5, 3]
    with pytest.raises(InputError, match="no patches"):
        over_patches(torch.ones(5), model)


def test_classes_and_layers_are_chosen():
    model = randomized(tiny(dropout=0.5, attention_dropout=0.5)).train()
    pixels = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    batch = vit.to_batch(pixels, model.config)
    kept = attention_and_gradient(model, batch, keep_attention=[0, 2])
    assert model.training
    assert list(kept.attentions) == list(kept.gradients) == [0, 2]
    assert kept.attentions[2][3].shape == kept.gradients[2][3].shape == (2, 5, 5)
    assert kept.targets.tolist() == kept.logits.argmax(-1).tolist()
    # Each picture for itself, whatever else is in the batch.
    mixed = gradient_relevance(model, batch, [0, 1, 2, 3])
    for b in range(4):
        alone = vit.to_batch(pixels[b : b + 1], model.config)
        torch.testing.assert_close(gradient_relevance(model, alone, LABELS[b])[0], mixed[b])
        one = gradient_relevance(model, alone, b, layers=[2])[0]
        assert not torch.allclose(one, mixed[b], atol=1e-4)
    small = torch.arange(4, dtype=torch.uint8)
    for same, wanted in zip(gradient_relevance(model, batch, small), mixed, strict=True):
        torch.testing.assert_close(same, wanted)
    assert over_patches(mixed[0], model).shape == (2, 2)
    assert all(p.grad is None for p in model.parameters())
    for mistake, message in (
        ({"target": "spots"}, "class 'spots' is not known; use one of horizontal, vertical"),
        ({"target": 4}, r"no class 4; the classes are 0\.\.3"),
        ({"target": [0, 1, 2, -1]}, r"no class -1; the classes are 0\.\.3"),
        ({"target": [0, 1]}, r"has the shape \(2,\), and there are 4 sequences; it must be one"),
        ({"target": [[0, 1, 2, 3]]}, r"has the shape \(1, 4\)"),
        (
            {"target": [True, False, True, True]},
            r"contains bool; classes are whole numbers, 0\.\.3",
        ),
        ({"target": True}, "contains bool"),
        ({"target": torch.ones(4)}, "contains float32"),
        ({"target": list(LABELS)}, r"must be numbers of classes, 0\.\.3, or a label"),
        ({"target": 10**30}, "must be numbers of classes"),
        ({"keep_attention": [3]}, r"no layer 3; the layers are 0\.\.2"),
        ({"keep_attention": []}, "no layers"),
        ({"head": "nsp"}, "no head 'nsp'"),
    ):
        with pytest.raises(InputError, match=message):
            attention_and_gradient(model, batch, **mistake)


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Faint noise (N, 1, 16, 16) with a pattern, the class (N), in one quarter (N) of each."""
    generator = torch.Generator().manual_seed(seed)
    classes, quarters = (torch.randint(0, 4, (count,), generator=generator) for _ in range(2))
    turned = torch.randint(0, 2, (count,), generator=generator)
    row, column = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    pairs = (row // 2, column // 2, row // 2 + column // 2, (row + column) // 2)
    patterns = torch.stack(pairs) % 2 - 0.5
    found = torch.randn(count, 1, SIDE, SIDE, generator=generator) * 0.1
    for i in range(count):
        down, across = divmod(int(quarters[i]), 2)
        place = found[i, 0, 8 * down : 8 * down + 8, 8 * across : 8 * across + 8]
        place += patterns[classes[i]] * (1 - 2 * turned[i])
    return found, classes, quarters


def of_quarters(model: Model, pixels: Tensor, target: Tensor | None = None) -> Tensor:
    """The relevance (N, 4) of the quarters of each picture."""
    rows = gradient_relevance(model, vit.to_batch(pixels, model.config), target)
    found = torch.stack([over_patches(row, model) for row in rows])  # (N, 4, 4)
    return found.unfold(1, 2, 2).unfold(2, 2, 2).sum((-1, -2)).flatten(1)


def most_relevant(model: Model, pixels: Tensor) -> Tensor:
    """The quarter (N) of each picture that has most of the relevance."""
    return of_quarters(model, pixels).argmax(1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    """A tiny ViT as made, and trained."""
    folder = made_once(tmp_path_factory, "quarters", _learn_patterns)
    return load(folder / "0").eval(), load(folder / "200").eval()


def _learn_patterns(folder: Path) -> None:
    for steps in (0, 200):
        torch.manual_seed(SEED)
        sizes = {"image_size": SIDE, "patch_size": PATCH, "channels": 1, "hidden_size": 32}
        model = vit.make_model(**sizes, layers=1, heads=4, mlp_ratio=2.0, labels=LABELS)
        pixels, classes, _ = pictures(2048, seed=1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
        for _ in range(steps):
            some = torch.randint(0, len(pixels), (64,))
            scores = model(vit.to_batch(pixels[some], model.config)).logits["classification"]
            # Scores that only grow flatten the gradient by the attention that decides.
            loss = torch.nn.functional.cross_entropy(scores, classes[some], label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        save(model, folder / str(steps))


def test_relevance_finds_the_quarter_that_carries_the_class(models: tuple[Model, Model]):
    """Held out pictures; with random weights the same check fails."""
    untrained, trained = models
    pixels, classes, quarters = pictures(200, seed=2)
    scores = trained(vit.to_batch(pixels, trained.config)).logits["classification"]
    assert (scores.argmax(-1) == classes).float().mean() > 0.9
    assert (most_relevant(trained, pixels) == quarters).float().mean() >= 0.8
    assert (most_relevant(untrained, pixels) == quarters).float().mean() < 0.6


def test_each_class_has_its_own_quarter(models: tuple[Model, Model]):
    """Two patterns in a picture: which one counts depends on the class, so attention is not all."""
    one, two = pictures(400, seed=4), pictures(400, seed=5)
    apart = (one[1] != two[1]) & (one[2] != two[2])
    pixels = (one[0] + two[0])[apart]
    first = of_quarters(models[1], pixels, one[1][apart])
    second = of_quarters(models[1], pixels, two[1][apart])
    for found, other, quarters in ((first, second, one[2][apart]), (second, first, two[2][apart])):
        its_own, not_its_own = (
            x.gather(1, quarters[:, None]) / x.sum(1, keepdim=True) for x in (found, other)
        )
        assert (its_own > not_its_own).float().mean() >= 0.8


@pytest.fixture(scope="module")
def folder(models: tuple[Model, Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model's folder, with pictures in it as files."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("vit")
    save(models[1], folder)
    Processor(size=(SIDE, SIDE), mean=(0.5,), std=(0.5,), channels=1).save(folder)
    (folder / "pictures").mkdir()
    values = (pictures(3, seed=3)[0][:, 0] / 2 + 0.5).clamp(0, 1).mul(255).byte().numpy()
    for i, array in enumerate(values):
        image.fromarray(array).save(folder / "pictures" / f"{i}.png")
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["ownbert", "relevance", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code if isinstance(end.value.code, int) else 0


@pytest.mark.usefixtures("plots")
def test_a_picture_of_it(folder: Path, tmp_path: Path, monkeypatch, capsys):
    plot = pytest.importorskip("matplotlib.image")
    output = tmp_path / "relevance.png"
    found = draw_relevance(folder, [folder / "pictures"], output, label="checks", layers=[0])
    assert [one.name for one in found] == ["0.png", "1.png", "2.png"]
    model, one = load(folder), found[1]
    pixels = Processor.load(folder)([plot.imread(folder / "pictures" / "1.png")])
    rows = [
        gradient_relevance(model, vit.to_batch(torch.from_numpy(pixels), model.config), target)[0]
        for target in (None, "checks")
    ]
    assert [number for number, _ in one.maps] == [one.predicted, LABELS.index("checks")]
    assert one.answer == LABELS[one.predicted]
    for (_, heat), row in zip(one.maps, rows, strict=True):
        assert_close(heat, over_patches(row, model), scale=0)
    assert_close(one.pixels[..., 0], pixels[0, 0] / 2 + 0.5)
    drawn = plot.imread(output)
    # Grey where the picture stands alone, coloured where there is relevance.
    colour = np.abs(drawn[..., 0] - drawn[..., 2]).max(0)
    quarter = len(colour) // 4
    assert colour[: quarter // 2].max() == 0
    assert colour[quarter : 2 * quarter].max() > 0.3
    assert run(monkeypatch, folder, folder / "pictures" / "2.png", "-o", output) == 0
    answer = f"2.png: {found[2].answer}, probability {found[2].probabilities.max():.3f}"
    assert capsys.readouterr().out.splitlines() == [answer, f"saved {output}"]
    assert plot.imread(output).shape[0] < drawn.shape[0] / 2


@pytest.mark.usefixtures("plots")
def test_the_picture_is_drawn_as_it_was_under_any_scale(folder: Path, tmp_path: Path):
    """Values from -1 to 1 in two ways."""
    other = tmp_path / "other"
    save(load(folder), other)
    Processor((SIDE, SIDE), (1.0,), (1.0,), channels=1, scale=1 / 127.5).save(other)
    pair = [
        draw_relevance(one, [folder / "pictures" / "0.png"], tmp_path / "relevance.png")[0]
        for one in (folder, other)
    ]
    assert_close(pair[1].pixels, pair[0].pixels)
    assert_close(pair[1].probabilities, pair[0].probabilities)


@pytest.mark.usefixtures("plots")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "label",
    [
        pytest.param("checks", marks=pytest.mark.slow, id="latin"),
        pytest.param("方格", id="han"),
        pytest.param("\ue000", id="of no font"),
    ],
)
def test_words_in_any_script(folder: Path, tmp_path: Path, label: str):
    """With a font that has the characters, or as numbers: never as boxes, of which it is warned."""
    model = load(folder)
    model.labels = (label, *(f"{label} {i}" for i in range(3)))
    save(model, tmp_path / "model")
    Processor.load(folder).save(tmp_path / "model")
    for name in ("0.png", "猫的照片.png", "🐈.png", "a\tb.png"):
        (tmp_path / name).write_bytes((folder / "pictures" / "0.png").read_bytes())
        output = tmp_path / "out" / "relevance.png"
        found = draw_relevance(tmp_path / "model", [tmp_path / name], output)
        assert (found[0].name, found[0].answer in model.labels) == (name, True)


@pytest.mark.usefixtures("plots")
def test_mistakes(folder: Path, tmp_path: Path, monkeypatch, capsys):
    picture = folder / "pictures" / "0.png"
    broken = tmp_path / "broken.png"
    broken.write_bytes(picture.read_bytes()[:60])
    words, other = tmp_path / "words", tmp_path / "other"
    save(Model(EncoderConfig.of_size("tiny", vocab_size=9)), words)
    save(load(folder), other)
    Processor(size=(8, 8), mean=(0.5,), std=(0.5,), channels=1).save(other)
    output = tmp_path / "relevance.png"
    for arguments, message in (
        ((words, picture), "contains a text model; relevance maps are for images"),
        ((tmp_path / "none", picture), "no such folder: "),
        ((other, picture), "preprocessor_config.json does not match its model"),
        ((folder, broken), "broken.png"),
        ((folder, folder / "config.json"), "config.json is not an image"),
        ((folder, tmp_path / "none.png"), "no such file: .*none.png"),
        ((folder, picture, "--class", "spots"), "class 'spots' is not known; use one of hor"),
        ((folder, picture, "--layers", "1"), r"no layer 1; the layers are 0\.\.0"),
        ((folder, picture, "--layers", "first"), "--layers is 'first'; it must be numbers"),
        ((folder, *[picture] * 65), "more than 64 images"),
        ((folder, output), "relevance.png would be read as an image of .*; write elsewhere"),
        ((folder, picture, tmp_path), "relevance.png would be read as an image of"),
    ):
        assert run(monkeypatch, *arguments, "-o", output) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert re.search(message, told), told
    assert not output.exists()
    for module, extra in (("matplotlib.figure", "plot"), ("PIL", "vision")):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, module, None)
            assert run(monkeypatch, folder, picture, "-o", output) == 2
        assert f"pip install 'ownbert[{extra}]'" in capsys.readouterr().err
