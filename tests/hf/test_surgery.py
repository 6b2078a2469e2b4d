"""Pruning, resizing, exchanging, naming: what scripts do to a model besides calling it."""

import warnings

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert.hf as hf  # noqa: E402
from ownbert.exceptions import InputError  # noqa: E402
from support.padded_models import close, padded, pair, same  # noqa: E402

HEADS = {0: [1], 1: [0, 2, 3]}


@pytest.mark.parametrize(
    "name", ["BertModel", "RobertaForMaskedLM", "ElectraModel", "DistilBertModel"]
)
def test_pruning(name: str, tmp_path):
    theirs, ours = pair(name)
    for model in (theirs, ours):
        model.prune_heads(HEADS)
        model.prune_heads({0: [1, 3]})
    same(theirs, ours)
    assert ours.model.config.pruned_heads == {0: (1, 3), 1: (0, 2, 3)}
    theirs.save_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    same(theirs, type(ours).from_pretrained(tmp_path / "theirs"))
    same(type(theirs).from_pretrained(tmp_path / "ours"), ours)
    again = type(ours).from_pretrained(tmp_path / "ours")
    again.prune_heads({0: [0]})
    theirs.prune_heads({0: [0]})
    same(theirs, again)
    assert again.config.pruned_heads == {0: [0, 1, 3], 1: [0, 2, 3]}
    for wrong, message in [
        ({0: [7]}, r"layer 0 has no head 7; the heads are 0\.\.3"),
        ({9: [0]}, r"names layer 9; the layers are 0\.\.1"),
        ({1: [1]}, "layer 1 would lose all of its heads"),
    ]:
        with pytest.raises(InputError, match=message):
            ours.prune_heads(wrong)
    same(*(model for model in (type(theirs).from_pretrained(tmp_path / "ours"), ours)))


def test_head_masks_of_pruned_layers_go_by_the_old_numbers():
    _, ours = pair("BertModel")
    mask = torch.rand(2, 4)
    given = padded() | {"head_mask": mask}
    pruned = mask.clone()
    pruned[0, 1], pruned[1, [0, 2, 3]] = 0, 0
    expected = ours(**given | {"head_mask": pruned})
    ours.prune_heads(HEADS)
    close(ours(**given)[0], expected[0])


@pytest.mark.parametrize("name", ["BertForMaskedLM", "AlbertForMaskedLM", "MobileBertForMaskedLM"])
@pytest.mark.parametrize("size", [70, 50])
def test_resizing(name: str, size: int, tmp_path):
    theirs, ours = pair(name)
    table = ours.resize_token_embeddings(size)
    assert table is ours.get_input_embeddings()
    assert ours.config.vocab_size == size == table.num_embeddings
    assert ours.get_output_embeddings().weight is table.weight
    old = theirs.get_input_embeddings().weight
    kept = min(size, 60)
    close(table.weight[:kept], old[:kept])
    close(table.weight[kept:], old.mean(0).expand(size - kept, -1))
    ids = torch.tensor([[5, 9, 49]])
    with torch.no_grad():
        found = ours(ids).logits
        close(found[..., :kept], theirs(ids).logits[..., :kept])
    ours.save_pretrained(tmp_path)
    close(type(theirs).from_pretrained(tmp_path)(ids).logits, found)
    ours(ids, labels=ids).loss.backward()
    assert table.weight.grad is not None
    assert ours.resize_token_embeddings(pad_to_multiple_of=16).num_embeddings % 16 == 0
    assert ours.resize_token_embeddings().num_embeddings % 16 == 0


def test_another_table():
    theirs, ours = pair("BertForMaskedLM")
    table = nn.Embedding(60, 32, padding_idx=0)
    for model in (theirs, ours):
        model.set_input_embeddings(table)
        model.tie_weights()
    same(theirs, ours)
    assert ours.get_output_embeddings().weight is table.weight
    larger = nn.Embedding(80, 32)
    ours.set_input_embeddings(larger)
    assert ours(torch.tensor([[79]])).logits.shape == (1, 1, 80)
    with pytest.raises(InputError, match="the new word table is 31 wide; it must be 32"):
        ours.set_input_embeddings(nn.Embedding(60, 31))


def test_heads_that_a_folder_lacks_start_anew(tmp_path):
    theirs, _ = pair("BertForMaskedLM")
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="classifier"):
        ours, info = hf.BertForSequenceClassification.from_pretrained(
            tmp_path, num_labels=5, output_loading_info=True
        )
    assert {name.split(".")[0] for name in info["missing_keys"]} == {"classifier", "bert"}
    assert ours.classifier.out_features == 5
    assert not ours.training
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = hf.BertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    given = padded()
    with torch.no_grad():
        close(model(**given)[0], theirs.bert(**given)[0], given["attention_mask"].bool())
    assert model(**given).pooler_output is None
    assert len(model(**given, return_dict=False)) == 2
    assert len(model(**given).to_tuple()) == 1


def test_checkpointing_changes_memory_alone():
    _, ours = pair("BertForMaskedLM")
    given = padded()
    targets = torch.where(given["attention_mask"].bool(), given["input_ids"], -100)
    grads = []
    for enabled in (False, True):
        if enabled:
            ours.gradient_checkpointing_enable()
        assert ours.is_gradient_checkpointing == enabled
        ours.zero_grad()
        ours.train()
        torch.manual_seed(3)
        ours(**given, labels=targets).loss.backward()
        grads.append([p.grad.clone() for p in ours.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    ours.gradient_checkpointing_disable()
    assert not ours.is_gradient_checkpointing


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunks(chunk: int):
    theirs, _ = pair("BertModel")
    _, ours = pair("BertModel", chunk_size_feed_forward=chunk)
    same(theirs, ours)


def test_bfloat16(tmp_path):
    theirs, ours = pair("BertModel")
    ours.save_pretrained(tmp_path)
    half = hf.BertModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    given = padded()
    truth = theirs(**given).last_hidden_state[given["attention_mask"].bool()]
    found = half(**given).last_hidden_state[given["attention_mask"].bool()].float()
    reference = theirs.bfloat16()(**given).last_hidden_state[given["attention_mask"].bool()].float()
    assert (found - truth).abs().max() < 2 * (reference - truth).abs().max()


def test_bfloat16_under_autocast():
    theirs, ours = pair("BertForSequenceClassification")
    given = padded()
    truth = theirs(**given).logits
    with torch.autocast("cpu", torch.bfloat16):
        found = ours.bfloat16()(**given).logits
        reference = theirs.bfloat16()(**given).logits
    assert found.dtype == reference.dtype == torch.bfloat16
    assert (found - truth).abs().max() < 3 * (reference - truth).abs().max() + 0.01
    found.float().sum().backward()


def test_configurations(tmp_path):
    config = hf.BertConfig(hidden_size=64, num_attention_heads=4, id2label={0: "a", 1: "b", 2: "c"})
    assert (config.num_labels, config.label2id["c"], config.use_return_dict) == (3, 2, True)
    config.save_pretrained(tmp_path)
    theirs = transformers.BertConfig.from_pretrained(tmp_path)
    assert (theirs.hidden_size, theirs.num_labels, theirs.id2label[1]) == (64, 3, "b")
    assert hf.BertConfig.from_pretrained(tmp_path, num_labels=4).num_labels == 4
    assert hf.BertConfig.from_pretrained(tmp_path) == config
    theirs.save_pretrained(tmp_path / "theirs")
    assert hf.BertConfig.from_pretrained(tmp_path / "theirs").hidden_size == 64
    small = hf.DistilBertConfig(dim=64, n_heads=4)
    assert (small.hidden_size, small.dim, small.num_attention_heads) == (64, 64, 4)
    for wrong, message in [
        ({"hidden_size": 65}, "hidden_size 65 must be a multiple of num_attention_heads 12"),
        ({"num_labels": 0}, "num_labels is 0"),
    ]:
        with pytest.raises(InputError, match=message):
            hf.BertConfig(**wrong)
    with pytest.raises(InputError, match="takes a BertConfig, not a str"):
        hf.BertModel("bert-base-uncased")
    with pytest.raises(InputError, match="no such folder"):
        hf.BertModel.from_pretrained(tmp_path / "nowhere")
    defaults = transformers.BertConfig().to_dict()
    ours = hf.BertConfig().to_dict()
    assert {k: ours[k] for k in ours.keys() & defaults.keys() - {"id2label", "label2id"}} == {
        k: defaults[k] for k in ours.keys() & defaults.keys() - {"id2label", "label2id"}
    }
