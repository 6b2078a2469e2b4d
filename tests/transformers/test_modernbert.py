"""ModernBERT with Transformers' API: what differs from its relatives."""

import tempfile

import pytest
import torch
import transformers

import ownbert
from ownbert.checkpoint import load, save
from ownbert.config.head_spec import HeadSpec
from support.floats import assert_close
from support.padded_models import pair


def test_fine_tuning_begins_with_the_dense_layer_of_the_mlm_head(tmp_path):
    theirs, _ = pair("ModernBertForMaskedLM")
    theirs.save_pretrained(tmp_path)
    _, expected = transformers.ModernBertForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    new = ", ".join(sorted(expected["missing_keys"]))
    with pytest.warns(UserWarning, match=f"{new} are not in it"):
        ours = ownbert.ModernBertForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(ours.heads["classification"].hidden.weight, theirs.head.dense.weight)
    for kinds in (["tokens"], ["choice"], ["span"], ["mlm", "classification"]):
        model = load(tmp_path, heads=kinds, labels=("a", "b", "c"))
        for head in model.heads.values():
            dense = head.dense if "decoder" in dict(head.named_children()) else head.hidden
            assert torch.equal(dense.weight, theirs.head.dense.weight)
            assert torch.equal(head.norm.weight, theirs.head.norm.weight)
    # Two heads of one name: one of them has it in the folder, the other a name of our own.
    torch.nn.init.ones_(model.heads["classification"].hidden.weight)
    save(model, tmp_path / "two")
    again = load(tmp_path / "two")
    for name, parameter in model.named_parameters():
        assert torch.equal(dict(again.named_parameters())[name], parameter), name


def test_far_positions_have_the_same_angles():
    sizes = {"num_hidden_layers": 2, "global_attn_every_n_layers": 1, "vocab_size": 60}
    theirs, ours = pair("ModernBertModel", max_position_embeddings=8192, **sizes)
    ids = torch.arange(16)[None] % 40 + 3
    at = torch.arange(16)[None] * 540
    with torch.no_grad():
        found = ours(input_ids=ids, position_ids=at)[0]
        expected = theirs(input_ids=ids, position_ids=at)[0]
    assert_close(found, expected)


def test_a_pooling_of_our_own_is_kept(tmp_path):
    theirs, _ = pair("ModernBertModel")
    theirs.save_pretrained(tmp_path)
    spec = HeadSpec("classification", pooling="max", dense="gelu", dense_norm=True)
    model = load(tmp_path, heads=(spec,), labels=("a", "b"))
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        again = load(folder)
    assert again.specs["classification"].pooling == "max"
    assert again.specs["classification"].dense_norm
