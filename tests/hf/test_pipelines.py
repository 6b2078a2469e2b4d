"""``transformers.pipeline`` with models of ours gives what it gives with Transformers' own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as library
from PIL import Image

import ownbert

transformers: Any = library

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc?.", "paris", "is", "in", "france"]
TEXT = "paris is in france"
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(alike(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    if isinstance(ours, float | np.floating):
        return ours == pytest.approx(theirs, abs=1e-5)
    return ours == theirs


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return transformers.BertTokenizerFast(vocab_file=str(tmp_path / "vocab.txt"))


@pytest.mark.parametrize(
    ("task", "name", "data", "options"),
    [
        ("text-classification", "SequenceClassification", TEXT, {}),
        ("text-classification", "SequenceClassification", [TEXT, "a"], {"top_k": None}),
        ("token-classification", "TokenClassification", TEXT, {}),
        ("token-classification", "TokenClassification", TEXT, {"aggregation_strategy": "first"}),
        ("question-answering", "QuestionAnswering", {"question": "a ?", "context": TEXT}, {}),
        ("fill-mask", "MaskedLM", "paris [MASK] in france", {}),
        ("feature-extraction", "Model", TEXT, {}),
        ("zero-shot-classification", "SequenceClassification", TEXT, {"candidate_labels": ["a"]}),
        ("text-generation", "LMHeadModel", TEXT, {"max_new_tokens": 3, "do_sample": False}),
    ],
)
def test_each_task(task: str, name: str, data: Any, options: dict, tokenizer, tmp_path: Path):
    kind = f"BertFor{name}" if not name.endswith("Model") else f"Bert{name}"
    torch.manual_seed(0)
    labels = {"question-answering": ["a", "b"]}.get(task, ["entailment", "O", "contradiction"])
    config = transformers.BertConfig(
        **SIZES,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
        is_decoder=task == "text-generation",
    )
    theirs = getattr(transformers, kind)(config).eval()
    theirs.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    expected = transformers.pipeline(task, model=theirs, tokenizer=tokenizer)(data, **options)
    ours = getattr(ownbert, kind).from_pretrained(tmp_path / "model")
    own = ownbert.BertTokenizer.from_pretrained(tmp_path / "model")
    for each in (tokenizer, own):
        found = transformers.pipeline(task, model=ours, tokenizer=each)(data, **options)
        assert alike(found, expected)


def test_images(tmp_path: Path):
    sizes = {k: v for k, v in SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 9, 3), dtype=np.uint8))
    found, expected = (
        transformers.pipeline("image-classification", model=model, image_processor=processor)(image)
        for model in (ownbert.ViTForImageClassification.from_pretrained(tmp_path), theirs)
    )
    assert alike(found, expected)


def test_translation(tokenizer, tmp_path: Path):
    sides = ("encoder", "decoder")
    sizes = {"attention_heads": 2, "layers": 1, "ffn_dim": 16}
    config = transformers.MarianConfig(
        vocab_size=len(WORDS),
        d_model=16,
        **{f"{side}_{name}": size for side in sides for name, size in sizes.items()},
        pad_token_id=0,
        decoder_start_token_id=0,
        eos_token_id=3,
        forced_eos_token_id=3,
        num_beams=1,
    )
    torch.manual_seed(5)
    theirs = transformers.MarianMTModel(config).eval()
    for name, parameter in theirs.named_parameters():
        if "positions" not in name:
            parameter.data.normal_(std=0.6)  # one beam finds other words than the default four
    theirs.save_pretrained(tmp_path)
    ours = ownbert.MarianMTModel.from_pretrained(tmp_path)
    found, expected = (
        transformers.pipeline("translation_a_to_b", model=model, tokenizer=tokenizer)(
            [TEXT, "a b", "c ?"], max_new_tokens=5
        )
        for model in (ours, theirs)
    )
    assert found == expected
