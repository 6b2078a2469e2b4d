"""DeBERTa-v2 and v3 with Transformers' API: what differs from their relatives."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import ownbert
from ownbert.checkpoint import load, save
from ownbert.exceptions import InputError
from support.floats import assert_close
from support.padded_models import padded, pair


@pytest.mark.parametrize(
    ("count", "labels"),
    [
        (1, [0.5, -1.0, 2.0]),
        (3, [0, 2, 1]),
        (3, [2, -1, 0]),
        (3, [-1, -1, -1]),
        (3, [[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.0, 0.4, 0.6]]),
    ],
)
def test_the_loss_of_sequences_is_by_the_shape_of_the_labels(count: int, labels: list):
    theirs, ours = pair("DebertaV2ForSequenceClassification", num_labels=count)
    given = padded("deberta-v2")
    with torch.no_grad():
        found = ours(**given, labels=torch.tensor(labels))
        expected = theirs(**given, labels=torch.tensor(labels))
    assert_close(found.loss, expected.loss)
    assert_close(found.logits, expected.logits)
    with pytest.raises(InputError, match=r"labels has shape \(2,.*; it must be one of \(3,\), "):
        ours(**given, labels=torch.tensor(labels)[:2])


def v3_folder(folder: Path) -> transformers.PreTrainedModel:
    """As Microsoft publishes v3: no architecture, and tensors of its pretraining."""
    model, _ = pair("DebertaV2ForMaskedLM", legacy=False, tie_word_embeddings=False)
    model.save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    values |= {"pos_att_type": "p2c|c2p"}
    for key in ("architectures", "legacy", "tie_word_embeddings"):
        values.pop(key)
    (folder / "config.json").write_text(json.dumps(values))
    tensors = load_file(folder / "model.safetensors")
    words = tensors["deberta.embeddings.word_embeddings.weight"]
    tensors |= {
        "deberta.embeddings.word_embeddings._weight": torch.zeros_like(words),
        "deberta.embeddings.position_embeddings.weight": torch.zeros(40, 32),
        "mask_predictions.dense.weight": torch.zeros(32, 32),
        "mask_predictions.classifier.bias": torch.zeros(1),
    }
    save_file(tensors, folder / "model.safetensors")
    return model


def test_a_folder_as_microsoft_publishes_it(tmp_path: Path):
    theirs = v3_folder(tmp_path)
    model = load(tmp_path, heads=["mlm"])
    assert_close(model.heads["mlm"].dense.weight, theirs.lm_predictions.lm_head.dense.weight)
    kind = ownbert.DebertaV2ForSequenceClassification
    new = "classifier.bias, classifier.weight, pooler.dense.bias, pooler.dense.weight are not in"
    with pytest.warns(UserWarning, match=new):
        tuned = kind.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 9, 7, 30]])
    with torch.no_grad():
        base = transformers.AutoModel.from_pretrained(tmp_path)(ids)[0]
        assert_close(tuned(ids, output_hidden_states=True).hidden_states[-1], base)
    # Written as config.json says, which is the older name of the head.
    save(model, tmp_path / "again")
    again = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "again")
    with torch.no_grad():
        assert_close(again(ids).logits, theirs(ids).logits)


def test_dropout_before_the_pooler_has_a_rate_of_its_own(tmp_path: Path):
    _, ours = pair("DebertaV2ForSequenceClassification", pooler_dropout=0.3, cls_dropout=0.2)
    head = ours.heads["classification"]
    assert (head.dense_dropout.p, head.dropout.p) == (0.3, 0.2)
    save(ours, tmp_path)
    again = load(tmp_path).heads["classification"]
    assert (again.dense_dropout.p, again.dropout.p) == (0.3, 0.2)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (theirs.pooler_dropout, theirs.cls_dropout) == (0.3, 0.2)
    again = load(tmp_path, dropout=0.0).heads["classification"]
    assert (again.dense_dropout.p, again.dropout.p) == (0.0, 0.0)
    _, plain = pair("DebertaV2ForMultipleChoice")
    head = plain.heads["choice"]
    assert (head.dense_dropout.p, head.dropout.p) == (0.0, 0.1)
