"""ModernBERT with Transformers' API: what differs from its relatives."""

import tempfile

import pytest
import torch
import transformers

import ownbert
from ownbert.checkpoint import load, save
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from support.floats import assert_close
from support.padded_models import assert_gaps_count_alike, padded, pair


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


def test_gaps_and_padding_in_front_count_as_in_theirs():
    theirs, ours = pair("ModernBertModel")
    assert_gaps_count_alike("modernbert", ours, theirs)


def test_far_positions_have_the_same_angles():
    sizes = {"num_hidden_layers": 2, "global_attn_every_n_layers": 1, "vocab_size": 60}
    theirs, ours = pair("ModernBertModel", max_position_embeddings=8192, **sizes)
    ids = torch.arange(16)[None] % 40 + 3
    at = torch.arange(16)[None] * 540
    with torch.no_grad():
        found = ours(input_ids=ids, position_ids=at)[0]
        expected = theirs(input_ids=ids, position_ids=at)[0]
    assert_close(found, expected)


def test_what_it_has_not_is_refused():
    _, ours = pair("ModernBertForMaskedLM")
    given = padded("modernbert")
    wrong = [
        (lambda: ours(**given, head_mask=torch.ones(4)), "has no argument 'head_mask'"),
        (lambda: ours(**given, token_type_ids=given["input_ids"]), "no argument 'token_type_ids'"),
        (lambda: ours(**given, cu_seqlens=torch.tensor([0, 9])), "cu_seqlens is not supported"),
        (lambda: ours(**given, batch_size=3), "batch_size is not supported"),
        (
            lambda: ownbert.ModernBertConfig(position_embedding_type="relative_key"),
            "position_embedding_type is 'relative_key'; it must be 'absolute'",
        ),
        (lambda: ownbert.ModernBertConfig(is_decoder=True), "is_decoder is True; it must be False"),
    ]
    for call, message in wrong:
        with pytest.raises(InputError, match=message):
            call()


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
