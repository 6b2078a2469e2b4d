"""ViT: pictures to pixel values, to patches, to batches; models, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ownbert
from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import load, save
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.vision import vit
from ownbert.vision.pixels import Processor, split_into_patches
from support.floats import assert_close

SMALL: dict[str, Any] = {
    "image_size": (8, 12),
    "patch_size": (4, 3),
    "channels": 2,
    "num_classes": 3,
    "hidden_size": 8,
    "layers": 2,
    "heads": 2,
}


def small(**changes: Any) -> vit.Model:
    torch.manual_seed(0)
    model = vit.make_model(**{**SMALL, **changes}).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    return model


def pixels(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 2, 8, 12, generator=torch.Generator().manual_seed(1))


def scores(model: vit.Model, values: torch.Tensor) -> torch.Tensor:
    return model(vit.to_batch(values, model.config)).logits["classification"]


def test_patches_are_a_convolution():
    """Channel, then row, then column, as in the weight of a Conv2d; patches row by row."""
    model, values = small(), pixels()
    projection = model.encoder.embeddings.projection
    kernel = projection.weight.view(8, 2, 4, 3)
    wanted = F.conv2d(values, kernel, projection.bias, stride=(4, 3)).flatten(2).transpose(1, 2)
    batch = vit.to_batch(values, model.config)
    assert (batch.tokens, batch.sequences, batch.patches.shape) == (27, 3, (24, 24))
    found = projection(batch.patches).unflatten(0, (3, 8))
    torch.testing.assert_close(found, wanted)
    alone = [split_into_patches(picture.numpy(), (4, 3)) for picture in values]
    assert np.array_equal(np.concatenate(alone), batch.patches.numpy())


def test_a_batch_of_examples_is_the_same():
    model, values = small(), pixels()
    nothing = np.zeros(9, np.int64)
    rows = [split_into_patches(picture.numpy(), (4, 3)) for picture in values]
    packed = model(pack([Example(nothing, nothing, patches=patches) for patches in rows]))
    torch.testing.assert_close(packed.logits["classification"], scores(model, values))


def test_gradients_reach_the_pixels():
    model, values = small(), pixels().requires_grad_()
    scores(model, values)[1].sum().backward()
    assert values.grad is not None
    assert (values.grad[1] != 0).all()
    assert (values.grad[[0, 2]] == 0).all()


def test_half_precision_takes_pixels_as_they_come():
    model = small().bfloat16()
    assert scores(model, pixels()).dtype == torch.bfloat16


def test_the_settings_of_a_model():
    config = small(dropout=0.2, attention_dropout=0.3, qkv_bias=False, mlp_ratio=1.5).config
    assert (config.hidden_dropout_prob, config.activation_dropout) == (0.2, 0.2)
    assert (config.attention_probs_dropout_prob, config.intermediate_size) == (0.3, 12)
    assert (config.layer_norm_eps, config.max_position_embeddings) == (1e-6, 9)
    model = small(qkv_bias=False, labels=["a", "b"])
    assert (model.labels, model.heads["classification"].dense.weight.shape) == (("a", "b"), (2, 8))
    assert model.encoder.blocks[0].attention.qkv.bias is None
    assert not small(num_classes=0).heads
    base = vit.make_model(hidden_size=48, layers=1, heads=3)
    assert (base.config.image.patches, len(base.labels)) == (196, 1000)
    assert base.labels[999] == "LABEL_999"


def test_a_scale_of_the_scores():
    plain, values = small(), pixels()
    same = small(qk_scale=0.5)  # heads of 4 channels
    torch.testing.assert_close(scores(same, values), scores(plain, values))
    other = small(qk_scale=0.25)
    halved = small()
    for block in halved.encoder.blocks:
        for part in (block.attention.qkv.weight, block.attention.qkv.bias):
            part.data[:8] /= 2  # the queries
    torch.testing.assert_close(scores(other, values), scores(halved, values))
    assert not torch.allclose(scores(other, values), scores(plain, values), atol=1e-3)


def test_dropout_is_of_training_alone():
    model, values = small(dropout=0.5, attention_dropout=0.5), pixels()
    assert torch.equal(scores(model, values), scores(model, values))
    model.train()
    assert not torch.allclose(scores(model, values), scores(model, values))


@pytest.mark.parametrize("pooler", [False, True])
def test_a_folder_there_and_back(tmp_path: Path, pooler: bool):
    model = small(labels=["x", "y"], qkv_bias=pooler)
    save(model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["image_size"] == [8, 12]
    again = load(tmp_path)
    assert (again.config, again.labels, again.model_type) == (model.config, ("x", "y"), "vit")
    assert torch.equal(scores(again, pixels()), scores(model, pixels()))
    assert isinstance(ownbert.load(tmp_path), vit.Model)
    said = ownbert.describe(tmp_path).as_json()
    assert said["parameters"] == sum(p.numel() for p in model.parameters())
    with pytest.raises(InputError, match="the model reads images"):
        ownbert.describe(tmp_path, tokens=4)
    encoder = load(tmp_path, heads=(), pooler=pooler)
    assert (encoder.pooler is not None) == pooler
    more = load(tmp_path, heads=["nsp", "classification"], labels=["x", "y"])
    assert torch.equal(scores(more, pixels()), scores(model, pixels()))


def test_shapes_and_models_that_do_not_fit():
    model = small()
    for values in (pixels()[0], pixels()[..., :9], pixels()[:, :1]):
        with pytest.raises(InputError, match=r"not \(B, 2, 8, 12\)"):
            vit.to_batch(values, model.config)
    with pytest.raises(InputError, match="reads text"):
        vit.to_batch(pixels(), EncoderConfig(vocab_size=9))
    with pytest.raises(InputError, match="height 8 must be a multiple of the patch size 5"):
        small(patch_size=5)
    with pytest.raises(InputError, match="8 x 12 cannot be cut into patches of 4 x 5"):
        split_into_patches(pixels()[0].numpy(), (4, 5))


MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)


def colours(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 12, 10, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [(12, 10), (8, 16)], ids=["as it is", "resized"])
@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "nearest"])
def test_a_processor_is_that_of_transformers(tmp_path: Path, size: tuple[int, int], resample: str):
    image = pytest.importorskip("PIL.Image")
    transformers = pytest.importorskip("transformers")
    ours = Processor(size=size, mean=MEAN, std=STD, resample=resample)
    ours.save(tmp_path)
    assert Processor.load(tmp_path) == ours
    theirs = transformers.ViTImageProcessor.from_pretrained(tmp_path)
    wanted = theirs(list(colours()), return_tensors="np")["pixel_values"]
    for given in (colours(), list(colours()), [image.fromarray(x) for x in colours()]):
        found = ours(given)
        assert (found.dtype, found.shape) == (np.float32, (4, 3, *size))
        assert_close(found, wanted)
    # Of fractions Pillow does not round what it makes of them to whole numbers.
    np.testing.assert_allclose(
        ours(colours() / 255), wanted, atol=1e-6 if size == (12, 10) else 0.03
    )


def test_grey_pictures():
    image = pytest.importorskip("PIL.Image")
    grey = Processor(size=(8, 8), mean=(0.5,), std=(0.25,), channels=1)
    bright = np.full((6, 5), 65535, np.uint16)
    mixed = [image.fromarray(colours()[0]), image.fromarray(bright), colours()[0, :8, :8, 0]]
    found = grey(mixed)
    assert found.shape == (3, 1, 8, 8)
    assert_close(found[1], 2.0)  # white, although of 16 bits
    assert_close(found[2, 0], (colours()[0, :8, :8, 0] / 255 - 0.5) / 0.25)
    in_colour = Processor(size=(12, 10))(colours()[..., 0])
    assert in_colour.shape == (4, 3, 12, 10)
    assert (in_colour[:, 0] == in_colour[:, 2]).all()
    assert grey([]).shape == (0, 1, 8, 8)


@pytest.mark.parametrize("size", [(6, 5), (8, 9)], ids=["as it is", "resized"])
@pytest.mark.parametrize("scale", [1 / 255, 1 / 127.5, 1.0])
def test_fractions_and_whole_numbers_mean_the_same(size: tuple[int, int], scale: float):
    """One processor of all kinds of numbers, whatever bytes are multiplied by."""
    image = pytest.importorskip("PIL.Image")
    ours = Processor(size, (0.5,), (0.5,), channels=1, resample="bicubic", scale=scale)
    shades = np.tile(np.array([0, 51, 102, 204, 255], np.uint8), (6, 1))
    wanted = ours([shades])
    for same in (shades.astype(np.int64), shades.astype(np.uint16), shades.astype(np.int16)):
        for given in ([same], same[None]):
            assert np.array_equal(ours(given), wanted)
    deep = (shades.astype(np.uint16) * 257, shades / np.float32(255))  # 16 bits, and floats
    for given in (shades / 255, shades / np.float16(255), *map(image.fromarray, deep)):
        np.testing.assert_allclose(ours([given]), wanted, atol=0.01 * 255 * scale)
    masks = shades > 100
    assert np.array_equal(ours([masks]), ours([masks.astype(np.float32)]))


@pytest.mark.parametrize("size", [(4, 4), (8, 8)], ids=["resized", "as it is"])
def test_numbers_that_are_no_shades_are_refused(size: tuple[int, int]):
    grey = Processor(size, (0.5,), (0.5,), channels=1)
    for value, message in (
        (200.0, "contain values from 200 to 200; they must be fractions from 0 to 1"),
        (-0.1, "contain values from -0.1 to -0.1; they must be fractions"),
        (np.nan, "contain values from nan to nan; they must be fractions"),
        (np.int16(-1), "contain values from -1 to -1; they must be whole numbers from 0 to 255"),
        (
            np.uint16(256),
            "contain values from 256 to 256; they must be whole numbers from 0 to 255",
        ),
        (1j, "contain complex128; they must contain numbers"),
        ("a", "contain <U1; they must contain numbers"),
    ):
        for given in ([np.full((8, 8), value)], np.full((1, 8, 8), value)):
            with pytest.raises(InputError, match=message):
                grey(given)


def test_transparent_pictures_are_laid_on_white():
    """A black drawing on nothing, which is black too."""
    image = pytest.importorskip("PIL.Image")
    drawing = np.zeros((6, 5, 4), np.uint8)
    drawing[2:4, 1:3, 3] = 255
    wanted = np.where(drawing[..., 3], 0, 255)
    rgba = image.fromarray(drawing)
    palette = image.fromarray(wanted.astype(np.uint8) // 255, "P")
    palette.putpalette([0] * 6)
    palette.info["transparency"] = 1
    marked = image.fromarray(np.stack([drawing[..., 3]] * 3, -1))  # one colour is transparent
    marked.info["transparency"] = (0, 0, 0)
    grey = Processor((6, 5), (0,), (1,), channels=1)
    in_colour = Processor((6, 5), (0,) * 3, (1,) * 3)
    for given in (rgba, rgba.convert("LA"), rgba.convert("RGBa"), palette):
        np.testing.assert_allclose(grey([given])[0, 0] * 255, wanted, atol=1e-4)
        np.testing.assert_allclose(in_colour([given])[0] * 255, [wanted] * 3, atol=1e-4)
    assert in_colour([marked]).min() == 1
    drawing[..., 3] = 128  # half of the black, half of the white
    np.testing.assert_allclose(grey([image.fromarray(drawing)]) * 255, 127, atol=1e-4)


def test_opaque_pictures_with_an_alpha_channel_are_those_of_transformers(tmp_path: Path):
    image = pytest.importorskip("PIL.Image")
    transformers = pytest.importorskip("transformers")
    ours = Processor(size=(8, 16), mean=MEAN, std=STD)
    ours.save(tmp_path)
    theirs = transformers.ViTImageProcessor.from_pretrained(tmp_path)
    given = [image.fromarray(x).convert("RGBA") for x in colours()]
    wanted = theirs(given, return_tensors="np", do_convert_rgb=True)["pixel_values"]
    assert_close(ours(given), wanted)


def test_what_a_processor_refuses(tmp_path: Path):
    grey = Processor(size=(12, 10), mean=(0.5,), std=(0.5,), channels=1)
    for given, message in (
        (colours(), "3 channels, the model reads 1"),
        (colours()[0, :, :, 0], r"it must be \(B, H, W\)"),
        ([colours()[0, 0, :, 0]], "an image has shape"),
        ([np.zeros((0, 5))], r"an image has shape \(0, 5\)"),
    ):
        with pytest.raises(InputError, match=message):
            grey(given)
    for settings, message in (
        ({"size": (8,)}, "size is"),
        ({"size": (8, 8), "channels": 2}, "channels is 2"),
        ({"size": (8, 8), "channels": 1}, "mean has 3 numbers for 1 channels"),
        ({"size": (8, 8), "std": (1, 0, 1)}, "every number must be more than 0"),
        ({"size": (8, 8), "resample": "cubic"}, "'cubic' is not known"),
    ):
        with pytest.raises(InputError, match=message):
            Processor(**settings)
    with pytest.raises(InputError, match=r"no such file: .*preprocessor_config\.json"):
        Processor.load(tmp_path)


def test_a_processor_of_others(tmp_path: Path):
    path = tmp_path / "preprocessor_config.json"
    old = {"size": 224, "image_mean": MEAN, "image_std": STD, "do_normalize": False, "resample": 3}
    path.write_text(json.dumps(old))
    wanted = Processor(size=(224, 224), mean=(0,) * 3, std=(1,) * 3, resample="bicubic")
    assert Processor.load(tmp_path) == wanted
    path.write_text(json.dumps({"size": 224, "image_mean": None, "image_std": None}))
    assert Processor.load(tmp_path) == Processor(size=(224, 224))  # Transformers' defaults
    for changes, message in (
        ({"do_center_crop": True}, "do_center_crop is true; it must be false"),
        ({"size": {"shortest_edge": 224}}, "it must give size"),
        ({"resample": 9}, "resample '9' is not known"),
        ({"image_std": [1, 1]}, "std has"),
        ({"rescale_factor": None}, "must give size"),  # as a number, None is NaN
    ):
        path.write_text(json.dumps({**old, "do_normalize": True, **changes}))
        with pytest.raises(InputError, match=message):
            Processor.load(tmp_path)
    path.write_text("{")
    with pytest.raises(InputError, match="is not valid JSON"):
        Processor.load(tmp_path)
