"""ViT with Transformers' arguments and outputs, against Transformers 4.57.6."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert  # noqa: E402
from ownbert.exceptions import InputError  # noqa: E402
from support.padded_models import arguments, close  # noqa: E402

ARCHITECTURES = ["ViTModel", "ViTForImageClassification"]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": [8, 12],
    "patch_size": [4, 3],
    "num_channels": 2,
    "num_labels": 5,
}


def pair(architecture: str, folder: Path, **changes: Any) -> tuple[Any, Any]:
    """Theirs, every weight random, and ours of the same folder."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(**{**SIZES, **changes}, attn_implementation="eager")
    theirs = getattr(transformers, architecture)(config).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    theirs.save_pretrained(folder)
    return theirs, ownbert.load(folder)


def pixels(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 2, 8, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_outputs_by_the_same_names(architecture: str, tmp_path: Path):
    theirs, ours = pair(architecture, tmp_path)
    assert list(ours.padded_call.arguments) == arguments(type(theirs))
    masks = torch.rand(3, 2, generator=torch.Generator().manual_seed(2))
    for extra in (
        {},
        {"output_hidden_states": True, "output_attentions": True},
        {"head_mask": masks, "output_attentions": True},
        {"interpolate_pos_encoding": False},
        {"return_dict": False, "output_hidden_states": True, "output_attentions": True},
    ):
        with torch.no_grad():
            expected, found = theirs(pixels(), **extra), ours(pixel_values=pixels(), **extra)
        if extra.get("return_dict") is False:
            close(found, tuple(expected))
            continue
        assert list(found) == list(expected)
        for name in expected:
            close(found[name], expected[name])


@pytest.mark.parametrize("problem", [None, "regression", "multi_label_classification"])
def test_losses(problem: str | None, tmp_path: Path):
    theirs, ours = pair("ViTForImageClassification", tmp_path, problem_type=problem)
    labels = torch.tensor([0, 4, 1]) if problem is None else torch.rand(3, 5)
    expected, found = theirs(pixels(), labels=labels), ours(pixels(), labels=labels)
    close(found.loss, expected.loss)
    expected.loss.backward()
    found.loss.backward()
    close(ours.heads["classification"].dense.weight.grad, theirs.classifier.weight.grad)
    projection = theirs.vit.embeddings.patch_embeddings.projection.weight.grad
    mine = ours.encoder.embeddings.projection.weight.grad
    close(mine.view(projection.shape), projection)


def test_what_is_refused(tmp_path: Path):
    _, ours = pair("ViTModel", tmp_path)
    for given, message in (
        ({}, "give pixel_values"),
        ({"pixel_values": pixels()[0]}, r"not \(B, 2, 8, 12\)"),
        ({"pixel_values": pixels(), "interpolate_pos_encoding": True}, "interpolate_pos_encoding"),
        ({"pixel_values": pixels(), "bool_masked_pos": torch.ones(3, 8)}, "bool_masked_pos"),
        ({"input_ids": torch.ones(1, 3)}, "no argument 'input_ids'"),
        ({"pixel_values": [1.0]}, "pixel_values is a list; it must be a tensor"),
    ):
        with pytest.raises(InputError, match=message):
            ours(**given)
    with pytest.raises(InputError, match="contains a vit model; BertModel reads bert"):
        ownbert.BertModel.from_pretrained(tmp_path)
