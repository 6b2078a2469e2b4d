"""Candidates for masks, against Transformers' own for every family's tokenizer."""

from pathlib import Path

import pytest
import torch

from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.inference.fill_mask import Filler, fill
from ownbert.nn.model import Model
from ownbert.text.bert_rules import SPECIAL_TOKENS
from ownbert.text.tokenizer import Tokenizer
from support.tokenizer_folders import FOLDERS

SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
WORDS = [*SPECIAL_TOKENS, "the", "dog", "run", "##ning", "##s", "is", ".", "我", "中"]


def made(folder: Path, tokenizer: Tokenizer, *heads: str, likely: str = "dog", **changes) -> Path:
    """A model that would put ``likely`` anywhere."""
    model = Model(EncoderConfig(**{**SIZES, **changes}), heads or ["mlm", "nsp"], labels=["a", "b"])
    if "mlm" in model.specs:
        index = tokenizer.id_of(likely)
        assert index is not None
        with torch.no_grad():
            model.heads["mlm"].decoder.bias[index] = 9.0
    save(model, folder, tokenizer=tokenizer)
    return folder


# XLNet fills by a query stream (tests/families/test_xlnet_texts.py).
@pytest.mark.parametrize("name", [name for name in FOLDERS if name not in ("T5", "XLNet")])
def test_as_transformers_fills(name: str, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    folder = FOLDERS[name](tmp_path / name)
    theirs = getattr(transformers, f"{name}TokenizerFast").from_pretrained(folder)
    further = {"embedding_size": 8} if name == "Albert" else {}
    config = getattr(transformers, f"{name}Config")(
        **{**SIZES, "vocab_size": len(theirs), "pad_token_id": theirs.pad_token_id},
        initializer_range=1.0,
        **further,
    )
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForMaskedLM")(config).eval()
    model.save_pretrained(folder)
    texts = ["The quick [MASK] fox.", "Où [MASK] la [MASK]?", "我喜欢[MASK]然语言", "<mask>"]
    for text, ours in zip(texts, fill(folder, texts, top=4), strict=True):
        # The tokenizer's own mask token, in its own place, is what Transformers asks for.
        own = text.replace("<mask>", "[MASK]").replace("[MASK]", theirs.mask_token)
        inputs = theirs(own, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits[0]
        places = (inputs["input_ids"][0] == theirs.mask_token_id).nonzero()[:, 0]
        assert [mask.position for mask in ours.masks] == places.tolist()
        for place, mask in zip(places, ours.masks, strict=True):
            best = logits[place].softmax(-1).topk(4)
            assert [c.id for c in mask.candidates] == best.indices.tolist()
            got = torch.tensor([c.probability for c in mask.candidates])
            torch.testing.assert_close(got, best.values, atol=2e-5, rtol=1e-4)
            tokens = theirs.convert_ids_to_tokens(best.indices.tolist())
            assert [c.token for c in mask.candidates] == tokens


def test_wordpiece_goes_into_the_text_as_it_was_written(tmp_path: Path):
    tokenizer = Tokenizer.wordpiece(WORDS)
    whole = made(tmp_path / "whole", tokenizer)
    (filled,) = fill(whole, "The DOG, is [MASK]; it's  the<mask>.")
    assert filled.filled == "The DOG, is dog; it's  thedog."
    assert [m.candidates[0].token for m in filled.masks] == ["dog", "dog"]
    assert filled.masks[0].candidates[0].probability > 0.9
    joined = made(tmp_path / "joined", tokenizer, likely="##ning")
    (filled,) = fill(joined, "the dog is run [MASK] .")
    assert filled.filled == "the dog is running ."
    best = filled.masks[0].candidates[0]
    assert (best.token, best.text, best.joined) == ("##ning", "ning", True)
    chinese = made(tmp_path / "chinese", tokenizer, likely="中")
    assert fill(chinese, ["我[MASK]我"])[0].filled == "我中我"


def test_text_that_is_already_tokens_needs_no_blanks_around_a_mask(tmp_path: Path):
    tokenizer = Tokenizer.blank([*SPECIAL_TOKENS, "12", "7", "[ODD]"])
    folder = made(tmp_path, tokenizer, likely="7")
    for text in ("12[MASK]12", "12 [MASK] 12", "12 <mask>12"):
        (filled,) = fill(folder, text)
        assert filled.text == text
        assert [m.position for m in filled.masks] == [2]
        assert filled.filled == "12 7 12"
    assert fill(folder, "[MASK]")[0].filled == "7"


def test_texts_of_any_number_keep_their_order_and_company_changes_nothing(tmp_path: Path):
    tokenizer = Tokenizer.wordpiece(WORDS)
    folder = made(tmp_path, tokenizer)
    filler = Filler(folder, top=3)
    texts = [f"{'the ' * (i % 30)}[MASK]{' is [MASK]' * (i % 3)}" for i in range(150)]
    together = list(filler(texts))
    assert [f.text for f in together] == texts
    for text, found in zip(texts[::7], together[::7], strict=True):
        (alone,) = filler([text])
        assert [m.position for m in found.masks] == [m.position for m in alone.masks]
        for a, b in zip(found.masks, alone.masks, strict=True):
            assert [c.id for c in a.candidates] == [c.id for c in b.candidates]
            for x, y in zip(a.candidates, b.candidates, strict=True):
                assert x.probability == pytest.approx(y.probability, rel=1e-4)


def test_no_candidate_is_beyond_the_vocabulary(tmp_path: Path):
    """A model may have more rows than its tokenizer has tokens."""
    tokenizer = Tokenizer.wordpiece(WORDS)
    model = Model(EncoderConfig(**SIZES), ["mlm"])
    with torch.no_grad():
        model.heads["mlm"].decoder.bias[len(WORDS) :] = 5.0
    save(model, tmp_path, tokenizer=tokenizer)
    (filled,) = fill(tmp_path, "[MASK]", top=100)
    candidates = filled.masks[0].candidates
    assert sorted(c.id for c in candidates) == list(range(len(WORDS)))
    assert sum(c.probability for c in candidates) < 0.1


def test_a_model_without_a_position_table_takes_any_length(tmp_path: Path):
    tokenizer = Tokenizer.wordpiece(WORDS)
    folder = made(tmp_path, tokenizer, position_embedding_type="alibi")
    (filled,) = fill(folder, "the " * 60 + "[MASK]")
    assert filled.masks[0].position == 61


def test_what_cannot_be_filled(tmp_path: Path):
    tokenizer = Tokenizer.wordpiece(WORDS)
    folder = made(tmp_path / "bert", tokenizer)
    with pytest.raises(InputError, match="no such folder"):
        fill(tmp_path / "none", "[MASK]")
    with pytest.raises(InputError, match="top is 0"):
        fill(folder, "[MASK]", top=0)
    with pytest.raises(InputError, match=r"text 2 has no mask: 'the dog'; write \[MASK\] for each"):
        fill(folder, ["the [MASK]", "the dog"])
    with pytest.raises(InputError, match="text 41 has no mask"):
        fill(folder, ["the [MASK]"] * 40 + [""])
    with pytest.raises(InputError, match=r"text 1 has 43 tokens .* at most 40"):
        fill(folder, "the " * 40 + "[MASK]")
    classifier = made(tmp_path / "classifier", tokenizer, "classification")
    with pytest.raises(InputError, match="is a BertForSequenceClassification, which has no masked"):
        fill(classifier, "[MASK]")
    decoder = made(tmp_path / "decoder", tokenizer, "mlm", is_decoder=True)
    with pytest.raises(InputError, match="is a decoder, which reads only from left to right"):
        fill(decoder, "[MASK]")
    assert fill(folder, []) == []
