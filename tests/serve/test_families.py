"""Every family that a server answers with: its batches, and the words that it shows."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.serve.served_model import ServedModel
from support.parity_models import their_model
from support.tokenizer_folders import FOLDERS

TEXTS = ["The quick brown fox", "words", "we tokens and", "a", "dog dog dog"]
CASES = [
    ("xlnet", "XLNet", "XLNetModel"),
    ("xlnet", "XLNet", "XLNetForSequenceClassification"),
    ("t5", "T5", "T5EncoderModel"),
    ("deberta-v2", "DebertaV2", "DebertaV2Model"),
    ("deberta-v2", "DebertaV2", "DebertaV2ForSequenceClassification"),
    ("modernbert", "Bert", "ModernBertModel"),
    ("modernbert", "Bert", "ModernBertForSequenceClassification"),
]


def answers(served: ServedModel, texts: list[str]) -> list[np.ndarray]:
    if served.task == "embed":
        return list(served.embedder.encode_ids(served.embed_items(texts).items))
    return [np.asarray(each) for each in served.predictor.decide(served.rows(texts).items)]


@pytest.mark.parametrize(("family", "tokenizer", "architecture"), CASES)
def test_a_batch_changes_no_answer(family: str, tokenizer: str, architecture: str, tmp_path: Path):
    folder = FOLDERS[tokenizer](tmp_path)
    torch.manual_seed(0)
    their_model(family, architecture, vocab_size=500).save_pretrained(folder)
    served = ServedModel("m", folder)
    served.warm_up()
    for text, found in zip(TEXTS, answers(served, TEXTS), strict=True):
        (alone,) = answers(served, [text])
        np.testing.assert_allclose(found, alone, rtol=1e-4, atol=1e-5)
    ((shown,),) = served.attention([served.attention_query(TEXTS[0], [-1], [0])])
    weights = shown["layers"][0]["heads"][0]["weights"]
    assert weights.shape == (len(shown["tokens"]), len(shown["tokens"]))
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-4)
