"""``ownbert.load``, ``from_pretrained`` and ``save_pretrained``: they copy what a folder has and
draw what it lacks, and nothing else."""

import copy
import json
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ownbert
from ownbert.exceptions import InputError
from ownbert.families import FAMILIES
from ownbert.nn.model import Model
from ownbert.nn.undrawn import truncated_normal_
from support.floats import assert_close
from support.opened_files import opened
from support.padded_models import sizes

ARCHITECTURES = [(f.model_type, name) for f in FAMILIES.values() for name in f.architectures]
IDS = torch.tensor([[5, 9, 7]])


@pytest.fixture
def undefined() -> Iterator[None]:
    """New memory is full of NaN, so a weight that is neither copied nor drawn is one."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def config(model_type: str = "bert", **changes: Any) -> Any:
    start = next(iter(FAMILIES[model_type].architectures))
    kind = getattr(ownbert, re.sub("(Encoder)?Model$", "Config", start))
    return kind(**sizes(model_type), **changes)


def loaded(kind: Any, folder: Path, **options: Any) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that weights are newly initialised
        return kind.from_pretrained(folder, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = ownbert.BertForMaskedLM(config(output_attentions=True))
    made.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("undefined")
@pytest.mark.parametrize(("model_type", "architecture"), ARCHITECTURES)
def test_every_architecture_from_its_base(tmp_path: Path, model_type: str, architecture: str):
    kind = getattr(ownbert, architecture)
    base = getattr(ownbert, next(iter(kind.family.architectures)))
    encoder = base(config(model_type))
    encoder.save_pretrained(tmp_path)
    model = loaded(kind, tmp_path, **({"is_decoder": True} if kind.spec.decoder else {}))
    own = dict(model.named_parameters())
    assert all(tensor.isfinite().all() for tensor in own.values())
    for name, tensor in encoder.encoder.named_parameters():
        assert torch.equal(own[f"encoder.{name}"], tensor), name
    model.save_pretrained(tmp_path / "again")
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = [kind.from_pretrained(tmp_path / "again"), ownbert.load(tmp_path / "again")]
    assert torch.equal(state, torch.get_rng_state())
    for one in again:
        assert one.padded_call.architecture == architecture
        for name, tensor in one.named_parameters():
            assert torch.equal(own[name], tensor), name


@pytest.mark.parametrize("way", ["load", "from_pretrained"])
def test_only_a_new_head_is_drawn(folder: Path, way: str):
    torch.manual_seed(3)
    if way == "load":
        model = ownbert.load(folder, heads=["tokens"])
    else:
        with pytest.warns(UserWarning, match=r"classifier.weight are not in it, and") as found:
            model = ownbert.BertForTokenClassification.from_pretrained(folder)
        assert {warning.filename for warning in found} == {__file__}
    after = torch.get_rng_state()
    torch.manual_seed(3)
    weight: Any = model.heads["tokens"].dense.weight
    assert torch.equal(weight, truncated_normal_(torch.empty(weight.shape), 0.02))
    assert torch.equal(torch.get_rng_state(), after)
    assert model(IDS, attention_mask=torch.ones_like(IDS)).logits.shape == (1, 3, 2)


def test_what_config_json_says_is_kept(folder: Path, tmp_path: Path):
    for model in (ownbert.load(folder), ownbert.BertForMaskedLM.from_pretrained(folder)):
        assert len(model(IDS).attentions) == 2
        model.resize(40)
        model.prune_heads({0: [1]})
        model.save_pretrained(tmp_path / "again")
        again = ownbert.load(tmp_path / "again")
        assert (again.config.vocab_size, again.config.pruned_heads) == (40, {0: (1,)})
        assert_close(again(IDS).logits, model.eval()(IDS).logits)
        assert again(IDS).attentions is not None
        ownbert.save(again, tmp_path / "saved")
        assert ownbert.BertConfig.from_pretrained(tmp_path / "saved").output_attentions


def test_changes_of_the_config(folder: Path):
    kind = ownbert.BertForSequenceClassification
    for options, labels in (
        ({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {0: "x", 1: "y"}}, ("x", "y")),
        ({"label2id": {"x": 0, "y": 1}}, ("x", "y")),
    ):
        model = loaded(kind, folder, hidden_dropout_prob=0.3, **options)
        assert isinstance(model, kind)
        assert not isinstance(model, ownbert.BertForMaskedLM)
        assert (model.labels, model.config.hidden_dropout_prob) == (labels, 0.3)
        model.save_pretrained(folder / "again")
        assert ownbert.load(folder / "again").labels == labels
        assert loaded(kind, folder / "again", num_labels=len(labels)).labels == labels
    assert ownbert.load(folder, heads=["classification"], labels=["x", "y"]).labels == ("x", "y")
    wrong = (
        r"classifier.bias has shape \(2,\), expected \(3,\).*; ignore_mismatched_sizes=True init"
    )
    with pytest.raises(InputError, match=wrong):
        kind.from_pretrained(folder / "again", num_labels=3)
    with pytest.warns(UserWarning, match="classifier.bias, classifier.weight are not in it"):
        other = kind.from_pretrained(folder / "again", num_labels=3, ignore_mismatched_sizes=True)
    assert len(other.labels) == 3
    changed = ownbert.BertConfig.from_pretrained(folder / "again")
    assert isinstance(changed, ownbert.BertConfig)
    assert changed.num_labels == 2
    changed.num_labels = 4
    assert len(kind(changed).labels) == 4
    model = ownbert.BertForMaskedLM.from_pretrained(folder, torch_dtype="bfloat16")
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([0.5], "regression"),
        ([1], "single_label_classification"),
        ([[1.0, 0.0]], "multi_label_classification"),
    ],
)
def test_the_kind_of_labels_is_saved(tmp_path: Path, labels: list[Any], problem: str):
    kind = ownbert.BertForSequenceClassification
    model = kind(config(num_labels=1 if problem == "regression" else 2)).eval()
    loss, found = model(IDS, labels=torch.tensor(labels)).loss, model.padded_call.config
    assert found.problem_type == problem
    model.save_pretrained(tmp_path)
    again = ownbert.load(tmp_path)
    assert again.padded_call.config.problem_type == problem
    assert_close(again(IDS, labels=torch.tensor(labels)).loss, loss)
    kind(found).save_pretrained(tmp_path)
    fresh = kind(config())
    fresh.save_pretrained(tmp_path)
    assert ownbert.load(tmp_path).padded_call.config.problem_type is None


def test_copies_and_pickles(folder: Path):
    model = ownbert.load(folder)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(IDS).logits, model(IDS).logits)
        assert other.padded_call.config is not model.padded_call.config
    with torch.no_grad():
        out = model(IDS)
    assert torch.equal(pickle.loads(pickle.dumps(out)).logits, out.logits)


def test_checkpointing_computes_the_same_gradients(folder: Path):
    model, found = ownbert.load(folder, dropout=0.0).train(), []
    for enabled in (False, True):
        model.gradient_checkpointing_enable(enabled)
        model.zero_grad()
        model(IDS, labels=IDS, output_attentions=False).loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*found, strict=True):
        assert_close(other, one)


def test_weights_that_are_not_numbers_are_refused(folder: Path):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = max(tensors)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    for read in (ownbert.load, ownbert.BertForMaskedLM.from_pretrained):
        with pytest.raises(InputError, match=f"{name} contains values that are not finite"):
            read(folder)


def test_an_index_of_weights_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    weights, part = folder / "model.safetensors", folder / "model-00001-of-00001.safetensors"
    names = dict.fromkeys(load_file(weights), part.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    weights.rename(part)
    counts = opened(lambda: ownbert.load(folder), monkeypatch)
    assert counts["model.safetensors.index.json"] == 1


@pytest.mark.parametrize("named", [True, False])
def test_files_of_a_tokenizer_are_read_once(
    named: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "source.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##do")
    ownbert.BertTokenizer.from_pretrained(folder / "source.txt").save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    if not named:
        del config["tokenizer_class"]
        (folder / "config.json").unlink()
    path.write_text(json.dumps(config))
    counts = opened(lambda: ownbert.BertTokenizer.from_pretrained(folder), monkeypatch)
    read = {name: count for name, count in counts.items() if name.endswith(".json")}
    assert read.pop("tokenizer_config.json") == read.pop("tokenizer.json") == 1
    assert set(read.values()) <= {1}
    tokenizer = ownbert.BertTokenizer.from_pretrained(folder)
    assert tokenizer("undo")["input_ids"] == [2, 5, 6, 3]
