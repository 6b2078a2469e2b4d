"""T5's encoder-decoder against Transformers: scores, folders, texts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import ownbert
from ownbert.checkpoint import load, save
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.serve.served_model import ServedModel
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.translation.decode import Translator
from ownbert.translation.transformer import log_probs
from support.floats import assert_close
from support.tokenizer_folders import t5_folder

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 41,
    "d_model": 16,
    "d_kv": 7,
    "d_ff": 24,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 7,
    "decoder_start_token_id": 0,
}
# The first version, and version 1.1.
KINDS = [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}]


def pair(
    folder: Path, architecture: str = "T5ForConditionalGeneration", seed: int = 0, **changes: Any
) -> tuple[Any, Model]:
    """Theirs with random weights and ours of the same folder."""
    torch.manual_seed(seed)
    config = transformers.T5Config(**(SIZES | changes))
    theirs = getattr(transformers, architecture)(config).eval()
    for name, parameter in theirs.named_parameters():
        norm = parameter.ndim == 1 and name.endswith("weight")
        parameter.data = torch.randn_like(parameter) * 0.3 + norm
    theirs.save_pretrained(folder)
    return theirs, ownbert.load(folder)


def texts(rows: int = 3) -> dict[str, Tensor]:
    """Sources and targets of several lengths, some longer than there are exact distances."""
    by_chance = torch.Generator().manual_seed(1)
    given: dict[str, Tensor] = {}
    for name, length in (("", 12), ("decoder_", 10)):
        ids = torch.randint(3, 41, (rows, length), generator=by_chance)
        mask = torch.ones_like(ids)
        mask[1, 5:], mask[2, 8:] = 0, 0
        given |= {f"{name}input_ids": ids * mask, f"{name}attention_mask": mask}
    return given


@torch.no_grad()
@pytest.mark.parametrize("changes", KINDS, ids=["tied", "untied"])
def test_the_same_scores_in_both_directions(tmp_path: Path, changes: dict[str, Any]):
    theirs, ours = pair(tmp_path / "theirs", **changes)
    given = texts()
    keep = given["decoder_attention_mask"].bool()
    names = ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")
    found = log_probs(ours, *(given[name] for name in names))
    expected = theirs(**given).logits.log_softmax(-1)
    assert_close(found[keep], expected[keep])
    ownbert.save(ours, tmp_path / "ours")
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    assert_close(again.eval()(**given).logits[keep], theirs(**given).logits[keep])
    saved = [load_file(tmp_path / where / "model.safetensors") for where in ("theirs", "ours")]
    assert saved[0].keys() == saved[1].keys()
    for key in ("num_layers", "num_decoder_layers", "tie_word_embeddings", "feed_forward_proj"):
        assert getattr(again.config, key) == getattr(theirs.config, key)


@torch.no_grad()
def test_the_encoder_of_a_folder(tmp_path: Path):
    pair(tmp_path)
    encoder = ownbert.T5EncoderModel.from_pretrained(tmp_path)
    other = transformers.T5EncoderModel.from_pretrained(tmp_path)
    given = {name: texts()[name] for name in ("input_ids", "attention_mask")}
    keep = given["attention_mask"].bool()
    assert_close(encoder(**given)[0][keep], other(**given)[0][keep])


def test_what_is_refused(tmp_path: Path):
    _, ours = pair(tmp_path / "plain")
    with pytest.raises(InputError, match=r"reads a packed Batch.*T5: with Transformers"):
        ours(**texts())
    with pytest.raises(InputError, match="contains a T5Model; a T5ForConditionalGeneration is nee"):
        pair(tmp_path / "base", "T5Model")
    pair(tmp_path / "labelled", "T5ForSequenceClassification")
    assert ownbert.load(tmp_path / "labelled").specs.keys() == {"classification"}
    with pytest.raises(InputError, match="contains a T5ForSequenceClassification; a T5ForCondit"):
        Translator(tmp_path / "labelled")


def test_texts_of_a_folder(tmp_path: Path):
    """Translations, embeddings and pairs of texts, as Transformers frames and computes them."""
    pytest.importorskip("sentencepiece")
    tokenizer = transformers.T5TokenizerFast.from_pretrained(t5_folder(tmp_path))
    theirs, _ = pair(tmp_path, vocab_size=len(tokenizer), seed=9)
    texts = ["The quick brown fox", "", "Où est la bibliothèque?"]
    translator = Translator(tmp_path, beams=1, max_length=9)
    found = list(translator(texts))
    for text, ours in zip(texts, found, strict=True):
        if not text:
            assert ours == ""
            continue
        ids = tokenizer(text, return_tensors="pt").input_ids
        written = theirs.generate(ids, max_new_tokens=9)[0]
        assert ours == translator.target.decode(written, skip_special_tokens=True).strip()
    assert any(found)
    served = ServedModel("t5", tmp_path)
    assert (served.task, served.operations) == ("translate", ["translate"])
    vectors = ownbert.Embedder(tmp_path).encode(texts[::2])
    for text, vector in zip(texts[::2], vectors, strict=True):
        with torch.no_grad():
            hidden = theirs.encoder(tokenizer(text, return_tensors="pt").input_ids)[0]
        assert_close(torch.from_numpy(vector), hidden[0].mean(0))
    own = ownbert.Tokenizer.load(tmp_path)
    builder = TextInputBuilder(own, load(tmp_path).config, 12)
    first, second = own.encode_batch([texts[0], texts[2]])
    ids, types = builder.pair(first, second)
    expected = tokenizer(texts[0], texts[2], truncation="longest_first", max_length=12)
    assert ids.tolist() == expected["input_ids"]
    assert not types.any()
    expected = tokenizer(texts[0], truncation=True, max_length=12)
    assert builder.one(first).tolist() == expected["input_ids"]
    with pytest.raises(InputError, match="a t5 tokenizer has no mask_token"):
        _ = own.mask_id
    model = load(tmp_path, heads=["classification"], labels=("a", "b", "c"))
    assert model.specs["classification"].pooling == "mean"
    save(model, tmp_path / "labelled")
    assert load(tmp_path / "labelled").labels == ("a", "b", "c")
