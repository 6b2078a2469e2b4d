"""``from_pretrained`` copies what a folder has and draws what it lacks, and nothing else."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import ownbert
from ownbert import hf
from ownbert.exceptions import InputError
from ownbert.families import FAMILIES
from ownbert.hf.classes import config_of, model_of
from ownbert.nn.undrawn import truncated_normal_

SIZES: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}
FURTHER: dict[str, dict[str, Any]] = {
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "conv_kernel_size": 3,
    },
    "ernie": {"use_task_id": True},
    "mobilebert": {"intra_bottleneck_size": 4, "embedding_size": 4},
    "modernbert": {"pad_token_id": 0},
    "vit": {"image_size": 4, "patch_size": 2},
    "xlnet": {"max_position_embeddings": ...},
}
ARCHITECTURES = [(f.model_type, name) for f in FAMILIES.values() for name in f.architectures]
T5 = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}


@pytest.fixture
def undefined() -> Iterator[None]:
    """New memory is full of NaN, so a weight that is neither copied nor drawn is one."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def config(model_type: str, **changes: Any) -> Any:
    names = FAMILIES[model_type].names
    given = {**SIZES, **FURTHER.get(model_type, {}), **changes}
    return config_of(model_type)(**{names.get(k, k): v for k, v in given.items() if v is not ...})


def loaded(kind: Any, folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that weights are newly initialised
        return kind.from_pretrained(folder, output_loading_info=True, **options)


def assert_numbers(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert tensor.isfinite().all(), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hf.BertForMaskedLM(config("bert")).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("undefined")
@pytest.mark.parametrize(("model_type", "architecture"), ARCHITECTURES)
def test_every_architecture_from_its_base(tmp_path: Path, model_type: str, architecture: str):
    kind = model_of(architecture)
    base = kind.base_class()(config(model_type))
    base.save_pretrained(tmp_path)
    decoder = {"is_decoder": True} if kind.can_generate() else {}
    model, info = loaded(kind, tmp_path, **decoder)
    assert_numbers(model)
    there, own = base.state_dict(), model.state_dict()
    drawn = {model.full_name(name) for name in info["missing_keys"]}
    for name, tensor in there.items():
        full = base.full_name(name)
        if model.own_name(full) in own and full not in drawn:
            assert torch.equal(own[model.own_name(full)], tensor), name
    model.save_pretrained(tmp_path / "again")
    state = torch.get_rng_state()
    again, info = loaded(kind, tmp_path / "again")
    assert not any(info.values())
    assert torch.equal(state, torch.get_rng_state())
    assert_numbers(again)


@pytest.mark.parametrize("way", ["load", "from_pretrained"])
def test_only_a_new_head_is_drawn(folder: Path, way: str):
    torch.manual_seed(3)
    if way == "load":
        model = ownbert.load(folder, heads=["tokens"])
    else:
        model, _ = loaded(hf.BertForTokenClassification, folder)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    head = model.classifier
    assert torch.equal(head.weight, truncated_normal_(torch.empty(head.weight.shape), 0.02))
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("state", [False, True])
def test_a_config_of_the_caller_is_not_changed(folder: Path, state: bool):
    given = hf.BertConfig.from_pretrained(folder)
    options = {"state_dict": hf.BertForMaskedLM(given).state_dict()} if state else {}
    model = hf.BertForMaskedLM.from_pretrained(folder, config=given, **options)
    model.resize_token_embeddings(40)
    assert (model.config.vocab_size, given.vocab_size) == (40, 30)


def test_a_state_dict_with_options_that_are_ignored(folder: Path):
    state = hf.BertForMaskedLM.from_pretrained(folder).state_dict()
    options: dict[str, Any] = {"low_cpu_mem_usage": True, "attn_implementation": "eager"}
    for name, given in ((folder, None), (None, config("bert"))):
        model = hf.BertForMaskedLM.from_pretrained(name, config=given, state_dict=state, **options)
        assert torch.equal(
            model.state_dict()["cls.predictions.bias"], state["cls.predictions.bias"]
        )
    with pytest.raises(InputError, match="does not support load_in_8bit"):
        hf.BertForMaskedLM.from_pretrained(folder, state_dict=state, load_in_8bit=True)


@pytest.mark.usefixtures("undefined")
@pytest.mark.parametrize(
    ("model_type", "architecture", "before", "after"),
    [
        ("bert", "BertForSequenceClassification", {}, {"num_labels": 5, "vocab_size": 40}),
        ("bert", "BertForMaskedLM", {}, {"vocab_size": 20}),
        ("bert", "BertModel", {}, {"intermediate_size": 16}),
        ("bert", "BertLMHeadModel", {"is_decoder": True}, {"add_cross_attention": True}),
        ("deberta-v2", "DebertaV2Model", {}, {"conv_kernel_size": 5}),
    ],
)
def test_tensors_of_another_shape_are_drawn(
    tmp_path: Path,
    model_type: str,
    architecture: str,
    before: dict[str, Any],
    after: dict[str, Any],
):
    kind = model_of(architecture)
    kind(config(model_type, **before)).save_pretrained(tmp_path)
    model, info = loaded(kind, tmp_path, ignore_mismatched_sizes=True, **after)
    assert info["mismatched_keys"] or info["missing_keys"]
    assert_numbers(model)
    weights = [n for n, *_ in info["mismatched_keys"] if n.endswith("weight")]
    assert all(model.state_dict()[model.own_name(name)].std() > 0.005 for name in weights)


def test_other_labels_are_in_both_directions(folder: Path):
    found = ownbert.load(folder, heads=["classification"], labels=["x", "y"]).config
    assert (found.id2label, found.label2id) == ({0: "x", 1: "y"}, {"x": 0, "y": 1})


def test_the_dtype_of_a_folder(tmp_path: Path):
    kind = hf.BertModel
    kind(config("bert")).bfloat16().save_pretrained(tmp_path)
    for dtype, expected in (("auto", torch.bfloat16), (None, torch.float32)):
        assert kind.from_pretrained(tmp_path, dtype=dtype).dtype == expected


def test_a_warning_names_the_line_of_the_caller(folder: Path):
    kind = hf.BertForSequenceClassification
    with pytest.warns(UserWarning, match="newly initialised") as found:
        kind.from_pretrained(folder)
    assert {warning.filename for warning in found} == {__file__}


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (hf.BertForMaskedLM, lambda: hf.BertForMaskedLM(config("bert"))),
        (ownbert, lambda: hf.BertForMaskedLM(config("bert"))),
        (
            hf.T5ForConditionalGeneration,
            lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
        ),
    ],
    ids=["from_pretrained", "load", "t5"],
)
def test_weights_that_are_not_numbers_are_refused(kind: Any, made: Any, tmp_path: Path):
    made().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = max(tensors)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=f"{name} contains values that are not finite"):
        (kind.load if kind is ownbert else kind.from_pretrained)(tmp_path)
