"""What callers set with ``torch.set_default_dtype`` changes nothing."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ownbert

# They compute nothing with PyTorch: files of texts and ids, values, and what is saved as it is.
WITHOUT_TENSORS = {
    *("Callbacks", "EncoderConfig", "InputError", "Model", "Tokenizer", "describe"),
    *("learn_vocabulary", "load_tokenizer", "merge", "prepare", "push", "save"),
    *("Index", "build_index", "duplicates", "to_label", "topics"),  # with Embedder or Predictor
}


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def test_every_public_name_is_decorated():
    for name in ownbert._MODULES.keys() - WITHOUT_TENSORS:
        found = getattr(ownbert, name)
        source = inspect.getsource(found)
        assert "@in_float32" in source, name


def test_folders_and_vectors_are_float32(dtype: torch.dtype, tmp_path: Path):
    rows = [(f"w{i % 7} w{i % 5} w{i % 3}", "ab"[i % 2]) for i in range(60)]
    (tmp_path / "texts.txt").write_text("\n".join(text for text, _ in rows) + "\n")
    model, tokens = tmp_path / "model", tmp_path / "tokens"
    ownbert.learn_vocabulary([tmp_path / "texts.txt"], model, kind="blank")
    ownbert.prepare([tmp_path / "texts.txt"], tokens, tokenizer=model)
    sizes = {"size": "tiny", "max_steps": 2, "max_length": 16, "batch_tokens": 128}
    ownbert.pretrain(tokens, model, quiet=True, **sizes)
    tuned = tmp_path / "tuned"
    ownbert.finetune(
        "classify", model=model, train=rows, dev=rows[:20], output=tuned, epochs=1, quiet=True
    )
    for folder in (model, tuned):
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert tensor.dtype == torch.float32, name
    assert torch.get_default_dtype() == dtype

    def answers() -> tuple[float, np.ndarray, np.ndarray]:
        score = ownbert.Predictor(tuned)("w1 w2")[0]["score"]
        classes = ownbert.BertForSequenceClassification.from_pretrained(tuned)
        ids = ownbert.load_tokenizer(tuned).encode_batch(["w1 w2"])[0]
        logits = classes(input_ids=torch.as_tensor(ids)[None]).logits
        return score, ownbert.Embedder(model).encode("w1 w2"), logits.detach().numpy()

    found = answers()
    torch.set_default_dtype(torch.float32)
    for ours, expected in zip(found, answers(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
    assert found[1].dtype == found[2].dtype == np.float32
