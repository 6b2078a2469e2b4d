"""ViT: the same numbers as Transformers' and timm's, in both directions."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ownbert.checkpoint import load, save
from ownbert.exceptions import InputError
from ownbert.families import IMAGE_FAMILIES
from ownbert.vision import vit
from support.floats import assert_close
from support.parity_models import assert_same, read_by_them, transformers
from support.tiny import change_config

GOLDEN = Path(__file__).parents[1] / "golden"
BATCH = 3
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
}
SQUARE, WIDE = {}, {"image_size": [8, 24], "patch_size": [4, 6], "num_channels": 1}
VARIANTS = [
    (SQUARE, "ViTModel"),
    (SQUARE, "ViTForImageClassification"),
    (WIDE, "ViTModel"),
    (WIDE, "ViTForImageClassification"),
    ({"qkv_bias": False}, "ViTModel"),
    ({"qkv_bias": False, **WIDE}, "ViTForImageClassification"),
    ({"hidden_act": "gelu_new", "layer_norm_eps": 0.1}, "ViTForImageClassification"),
]


def their_model(architecture: str, **changes: Any) -> Any:
    """Every weight and bias random, LayerNorms too."""
    config = transformers.ViTConfig(**{**SIZES, **changes}, attn_implementation="eager")
    model = getattr(transformers, architecture)(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        norm = "layernorm" in name and name.endswith("weight")
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + norm)
    return model


def pictures(config: Any) -> Tensor:
    size = config.image_size
    pair = [size, size] if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, config.num_channels, *pair, generator=generator)


def their_outputs(model: Any, pixels: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        out = model(pixels, output_attentions=True)
    found = {f"attention {i}": a for i, a in enumerate(out.attentions)}
    if "logits" in out:
        return {**found, "logits": out.logits}
    return {**found, "hidden": out.last_hidden_state.flatten(0, 1), "pooled": out.pooler_output}


def our_outputs(model: Any, pixels: Tensor) -> dict[str, Tensor]:
    batch = vit.to_batch(pixels, model.config)
    context = model.encoder.plain_context(batch)
    context.keep = frozenset(range(model.config.num_hidden_layers))
    with torch.no_grad():
        out = model(batch, context=context)
    found = {f"attention {i}": torch.stack(maps) for i, maps in out.attentions.items()}
    if out.logits:
        return {**found, "logits": out.logits["classification"]}
    return {**found, "hidden": out.hidden, "pooled": out.pooled}


@pytest.mark.parametrize(("changes", "architecture"), VARIANTS)
def test_there_and_back(tmp_path: Path, changes: dict[str, Any], architecture: str):
    model = their_model(architecture, **changes)
    pixels = pictures(model.config)
    model.save_pretrained(tmp_path / "theirs")
    theirs = their_outputs(model, pixels)
    ours = load(tmp_path / "theirs")
    assert_same(our_outputs(ours, pixels), theirs)
    save(ours, tmp_path / "ours")
    again = read_by_them(architecture, tmp_path / "ours")
    assert_same(their_outputs(again, pixels), theirs)
    written = model.config.to_dict()
    for key in IMAGE_FAMILIES["vit"].defaults:
        assert again.config.to_dict()[key] == written[key], key


def test_pruned_heads(tmp_path: Path):
    model = their_model("ViTModel")
    model.prune_heads({1: [0]})
    model.save_pretrained(tmp_path)
    pixels = pictures(model.config)
    ours = load(tmp_path)
    assert ours.config.pruned_heads == {1: (0,)}
    assert_same(our_outputs(ours, pixels), their_outputs(model, pixels))


def test_defaults_are_those_of_transformers():
    general = transformers.PretrainedConfig().to_dict()
    values = transformers.ViTConfig().to_dict()
    own = {k for k in values if k not in general or values[k] != general[k]}
    defaults = dict(IMAGE_FAMILIES["vit"].defaults)
    # Of another head than ours; and by default the hidden size.
    assert own - {"model_type", "encoder_stride"} <= defaults.keys()
    defaults["pooler_output_size"] = 768
    assert {key: values[key] for key in defaults} == defaults


REFUSED = [
    ({"pooler_act": "relu"}, "pooler_act is 'relu'; it must be 'tanh'"),
    ({"pooler_output_size": 8}, "pooler_output_size is 8; it must be hidden_size, 16"),
    ({"image_size": [16, 16, 3]}, "image size is .*; it must be two whole numbers, at least 1"),
    ({"image_size": None}, "image_size is None; it must be a whole number, or height and width"),
    ({"image_size": 18}, "the image height 18 must be a multiple of the patch size 4"),
    ({"image_size": 20}, r"position_embeddings has shape \(1, 17, 16\), expected \(1, 26, 16\)"),
    ({"num_channels": 1}, r"projection.weight has shape \(16, 3, 4, 4\), expected \(16, 1, 4, 4\)"),
    ({"num_hidden_layers": 1}, "unexpected tensor vit.encoder.layer.1"),
    ({"num_hidden_layers": 3}, "missing tensor vit.encoder.layer.2"),
    ({"architectures": ["ViTForMaskedImageModeling"]}, "'ViTForMaskedImageModeling' is not supp"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_would_change_the_result_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    their_model("ViTModel").save_pretrained(tmp_path)
    load(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        load(tmp_path)


def test_what_transformers_cannot_say(tmp_path: Path):
    """A scale of the scores keeps Transformers from reading the folder; dropout does not."""
    sizes: dict[str, Any] = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "heads": 2}
    sizes |= {"layers": 1, "num_classes": 3}
    scaled = vit.make_model(**sizes, qk_scale=0.7, dropout=0.1)
    save(scaled, tmp_path / "scaled")
    again = load(tmp_path / "scaled")
    assert again.config == scaled.config
    assert (again.config.qk_scale, again.config.activation_dropout) == (0.7, 0.1)
    with pytest.raises(ValueError, match="ownbert-vit"):
        transformers.AutoModel.from_pretrained(tmp_path / "scaled")
    save(vit.make_model(**sizes, dropout=0.1), tmp_path / "plain")
    transformers.ViTForImageClassification.from_pretrained(tmp_path / "plain")
    assert load(tmp_path / "plain").config.activation_dropout == 0.1


def test_a_golden_model_of_timm():
    arrays = np.load(GOLDEN / "timm_vit.npz")
    weights = {
        name.removeprefix("weights."): torch.from_numpy(arrays[name])
        for name in arrays.files
        if name.startswith("weights.")
    }
    model = vit.from_timm(weights, heads=2, image_size=(8, 12))
    pixels = torch.from_numpy(arrays["pixel_values"])
    with torch.no_grad():
        logits = model(vit.to_batch(pixels, model.config)).logits["classification"]
    assert_close(logits, arrays["logits"])
    back = vit.to_timm(model)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)
    with pytest.raises(InputError, match=r"unexpected tensor blocks.0.ls1.gamma"):
        vit.from_timm({**weights, "blocks.0.ls1.gamma": torch.ones(8)}, heads=2, image_size=(8, 12))
    with pytest.raises(InputError, match=r"pos_embed has shape \(1, 7, 8\), expected \(1, 5, 8\)"):
        vit.from_timm(weights, heads=2, image_size=8)
    with pytest.raises(InputError, match="no tensor pos_embed: not a VisionTransformer of timm"):
        vit.from_timm({"patch_embed.proj.weight": torch.zeros(8, 1, 2, 2)}, heads=2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"qkv_bias": False}, {"num_classes": 0, "global_pool": "", "img_size": 8}],
    ids=["plain", "no bias", "no head"],
)
def test_timm_itself(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    try:
        import timm.models.vision_transformer  # noqa: F401
    except (ImportError, RuntimeError) as error:  # the latter where torchvision is for CUDA alone
        pytest.skip(f"needs timm and a torchvision that fits torch: {error}")
    monkeypatch.syspath_prepend(GOLDEN)
    make = __import__("make_timm")
    theirs = make.make_model(**changes)
    size = changes.get("img_size", (8, 12))
    ours = vit.from_timm(theirs.state_dict(), heads=2, image_size=size)
    pixels = make.pictures()[..., : ours.config.image.size[1]]
    with torch.no_grad():
        out = ours(vit.to_batch(pixels, ours.config))
        expected = theirs(pixels)
    found = out.logits["classification"] if out.logits else out.hidden.unflatten(0, (BATCH, -1))
    assert_close(found, expected)
    other = make.make_model(**changes)
    torch.nn.init.zeros_(other.cls_token)
    other.load_state_dict(vit.to_timm(ours))
    assert_close(other(pixels), theirs(pixels))
    assert "torchvision" in sys.modules
