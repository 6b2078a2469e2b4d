"""T5's encoder-decoder against Transformers 4.57.6: outputs, losses, generation, folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert  # noqa: E402
import ownbert.hf as hf  # noqa: E402
from ownbert.checkpoint import load, save  # noqa: E402
from ownbert.exceptions import InputError  # noqa: E402
from ownbert.serve.served_model import ServedModel  # noqa: E402
from ownbert.tasks.text_input import TextInputBuilder  # noqa: E402
from ownbert.transformer import log_probs  # noqa: E402
from ownbert.translate.decode import Translator  # noqa: E402
from support.padded_models import arguments, close  # noqa: E402
from support.tokenizer_folders import t5_folder  # noqa: E402

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
CLASSES = ("T5Model", "T5ForConditionalGeneration")


def pair(folder: Path, architecture: str = CLASSES[1], seed: int = 0, **changes: Any) -> Any:
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


def compare(found: Any, expected: Any, given: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    read, written = given["attention_mask"].bool(), given["decoder_attention_mask"].bool()
    for name in expected.keys() - {"past_key_values"}:
        close(found[name], expected[name], read if name.startswith("encoder_") else written)


@pytest.mark.parametrize("changes", KINDS, ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", CLASSES)
def test_the_same_numbers(tmp_path: Path, architecture: str, changes: dict[str, Any]):
    theirs, ours = pair(tmp_path / "theirs", architecture, **changes)
    assert type(ours) is getattr(hf, architecture)
    assert arguments(type(ours)) == arguments(type(theirs))
    given = texts()
    heads = torch.rand(3, 4, generator=torch.Generator().manual_seed(4))
    ours.save_pretrained(tmp_path / "ours")
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    labels = given["decoder_input_ids"].masked_fill(given["decoder_attention_mask"] == 0, -100)
    of_head = [{"labels": labels}] if ours.kinds else []
    for extra in (
        {"output_hidden_states": True, "output_attentions": True},
        {"head_mask": heads, "decoder_head_mask": torch.ones(2, 4)},
        {"cross_attn_head_mask": heads[:2], "decoder_head_mask": heads[1:]},
        *of_head,
    ):
        with torch.no_grad():
            expected, found = theirs(**given, **extra), ours(**given, **extra)
            assert len(theirs(**given, **extra, return_dict=False)) == len(
                ours(**given, **extra, return_dict=False)
            )
            compare(found, expected, given)
            close(again.eval()(**given, **extra)[0], expected[0])
    state = theirs.state_dict()
    assert ours.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())
    saved = [load_file(tmp_path / where / "model.safetensors") for where in ("theirs", "ours")]
    assert saved[0].keys() == saved[1].keys()
    for key in ("num_layers", "num_decoder_layers", "tie_word_embeddings", "feed_forward_proj"):
        assert getattr(again.config, key) == getattr(theirs.config, key)


@pytest.mark.parametrize("changes", KINDS, ids=["tied", "untied"])
def test_generation(tmp_path: Path, changes: dict[str, Any]):
    theirs, ours = pair(tmp_path, seed=5, **changes)
    source = {name: texts()[name] for name in ("input_ids", "attention_mask")}
    short: dict[str, Any] = {"max_new_tokens": 15}
    for options in ({}, short, {**short, "num_beams": 3}, {"num_beams": 4, "length_penalty": 0.3}):
        expected = theirs.generate(**source, **options)
        for cached in (True, False):
            found = ours.generate(**source, use_cache=cached, **options)
            assert without_padding(found) == without_padding(expected)


ANSWERING = [
    ("T5ForSequenceClassification", {"num_labels": 3, "num_decoder_layers": 1}),
    ("T5ForSequenceClassification", {"num_labels": 1, "feed_forward_proj": "gated-silu"}),
    ("T5ForQuestionAnswering", {"relative_attention_num_buckets": 9, "num_layers": 1}),
    ("T5ForQuestionAnswering", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("architecture", "changes"), ANSWERING)
def test_classes_that_answer_for_a_text(tmp_path: Path, architecture: str, changes: dict[str, Any]):
    """Ends stand before the last token too, and where there is padding behind them."""
    theirs, ours = pair(tmp_path / "theirs", architecture, **changes)
    assert type(ours) is getattr(hf, architecture)
    assert arguments(type(ours)) == arguments(type(theirs))
    given = {name: texts()[name] for name in ("input_ids", "attention_mask")}
    for row, end in enumerate((11, 4, 7)):
        given["input_ids"][row, [1, end]] = 1
    ours.save_pretrained(tmp_path / "ours")
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    if "Question" in architecture:
        labels = {"start_positions": torch.tensor([1, 3, 99]), "end_positions": torch.ones(3) * 4}
        labels["end_positions"] = labels["end_positions"].long()
    elif changes["num_labels"] == 1:
        labels = {"labels": torch.tensor([0.5, 1.0, -2.0])}
    else:
        labels = {"labels": torch.tensor([2, 0, 1])}
    extra = {"decoder_input_ids": texts(3)["decoder_input_ids"].repeat(1, 2)[:, :12]}
    extra["decoder_attention_mask"] = torch.ones(3, 12, dtype=torch.long)
    extra["decoder_attention_mask"][1, 9:] = 0
    for further in (labels, extra, {"output_hidden_states": True, "output_attentions": True}):
        with torch.no_grad():
            expected, found = theirs(**given, **further), ours(**given, **further)
            last = again.eval()(**given, **further)
        names = [name for name in expected if name != "past_key_values"]
        assert [name for name in found if name != "past_key_values"] == names
        for name in names:
            if name.startswith("encoder_"):
                close(found[name], expected[name], given["attention_mask"].bool())
            else:
                close(found[name], expected[name])
                close(last[name], expected[name])
        assert isinstance(ours(**given, **further, return_dict=False)[0], Tensor)
    assert again.config.id2label == theirs.config.id2label
    saved = [load_file(tmp_path / where / "model.safetensors") for where in ("theirs", "ours")]
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])


def without_padding(rows: Tensor) -> list[list[int]]:
    """Behind the first end token; theirs pads with ends where the padding's id is 0."""
    found = [row.tolist() for row in rows]
    return [row[: row.index(1) + 1] if 1 in row else row for row in found]


def test_a_step_with_a_cache_is_the_step_without_one(tmp_path: Path):
    _, ours = pair(tmp_path)
    given = {n: v[:1] for n, v in texts().items() if n != "decoder_attention_mask"}
    ids = given.pop("decoder_input_ids")
    with torch.no_grad():
        full = ours(**given, decoder_input_ids=ids).logits
        first = ours(**given, decoder_input_ids=ids[:, :4], use_cache=True)
        past = first.past_key_values
        rest = [
            ours(**given, decoder_input_ids=ids[:, i : i + 1], past_key_values=past).logits
            for i in range(4, ids.shape[1])
        ]
    close(torch.cat([first.logits, *rest], 1), full)


def test_the_packed_model(tmp_path: Path):
    theirs, ours = pair(tmp_path)
    given = texts()
    names = ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")
    with torch.no_grad():
        found = log_probs(ours.model, *(given[name] for name in names))
        expected = theirs(**given).logits.log_softmax(-1)
        keep = given["decoder_attention_mask"].bool()
        close(found[keep], expected[keep])
        other = dict(given)
        other["input_ids"] = given["input_ids"].clone()
        other["input_ids"][1:] = 7
        alone = log_probs(ours.model, *(other[name] for name in names))
    assert torch.equal(alone[0], found[0])  # a neighbour changes nothing


def test_the_encoder_of_a_folder(tmp_path: Path):
    pair(tmp_path)
    encoder = hf.T5EncoderModel.from_pretrained(tmp_path)
    other = transformers.T5EncoderModel.from_pretrained(tmp_path)
    given = {name: texts()[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        close(encoder(**given)[0], other(**given)[0], given["attention_mask"].bool())


def test_what_is_refused(tmp_path: Path):
    _, ours = pair(tmp_path, "T5Model")
    with pytest.raises(InputError, match="T5Model does not generate text; load a T5ForCondit"):
        ours.generate(torch.tensor([[5, 1]]))
    with pytest.raises(InputError, match="give decoder_input_ids"):
        ours(torch.tensor([[5, 1]]))
    _, ours = pair(tmp_path / "labelled", "T5ForSequenceClassification")
    with pytest.raises(InputError, match="every text must have the end token 1"):
        ours(torch.tensor([[5, 1], [6, 7]]))
    with pytest.raises(InputError, match="T5ForSequenceClassification does not generate text"):
        ours.generate(torch.tensor([[5, 1]]))
    with pytest.raises(InputError, match="contains a T5ForSequenceClassification; a T5ForCondit"):
        Translator(tmp_path / "labelled")
    with pytest.raises(InputError, match="tie_encoder_decoder is True; it must be False"):
        hf.T5Model(hf.T5Config(tie_encoder_decoder=True))


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
        close(torch.from_numpy(vector), hidden[0].mean(0))
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


def test_gradients_at_what_both_stacks_return(tmp_path: Path):
    found = []
    for model in pair(tmp_path, "T5ForConditionalGeneration"):
        out = model(**texts(), use_cache=False, output_attentions=True, output_hidden_states=True)
        names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
        names += ("encoder_hidden_states", "decoder_hidden_states")
        wanted = [out[name][0] for name in names] + [out.encoder_last_hidden_state]
        found.append(torch.autograd.grad(out.logits[0, 4, 7], wanted))
    for mine, other in zip(found[1], found[0], strict=True):
        close(mine[0], other[0])  # a text without padding


@pytest.mark.parametrize("architecture", CLASSES)
def test_masked_heads_of_both_stacks(tmp_path: Path, architecture: str):
    """The encoder's mask is the decoder's too where both have as many layers."""
    theirs, ours = pair(tmp_path, architecture, num_layers=2)
    heads = torch.tensor([[0.0, 1, 1, 0.5], [1, 0, 1, 1]])
    for extra in ({}, {"cross_attn_head_mask": heads.flip(0)}):
        given = {**texts(), "head_mask": heads, "output_attentions": True, **extra}
        with torch.no_grad():
            # 4.57.6 stops at a warning whose text it lacks if the decoder's mask is not given.
            compare(ours(**given), theirs(**given, decoder_head_mask=heads), given)


@pytest.mark.parametrize("changes", KINDS, ids=["tied", "untied"])
@pytest.mark.parametrize("size", [50, 30])
def test_another_vocabulary(tmp_path: Path, changes: dict[str, Any], size: int):
    theirs, ours = pair(tmp_path / "theirs", **changes)
    for model in (theirs, ours):
        assert model.resize_token_embeddings(size).num_embeddings == size
        assert model.config.vocab_size == model.vocab_size == size if model is ours else True
    given = {name: ids.clamp(max=29) for name, ids in texts().items()}
    with torch.no_grad():
        expected, found = theirs(**given).logits, ours(**given).logits
        assert found.shape == expected.shape
        close(found[..., :30], expected[..., :30], given["decoder_attention_mask"].bool())
    ours.save_pretrained(tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        close(found, again(**given).logits, given["decoder_attention_mask"].bool())


def test_the_decoder_alone(tmp_path: Path):
    theirs, ours = pair(tmp_path, "T5ForConditionalGeneration")
    given, found = texts(), []
    for model in (theirs, ours):
        read = model.get_encoder()(given["input_ids"], given["attention_mask"])
        with torch.no_grad():
            written = model.get_decoder()(
                input_ids=given["decoder_input_ids"],
                encoder_hidden_states=read.last_hidden_state,
                encoder_attention_mask=given["attention_mask"],
                use_cache=False,
            )
        found.append((list(written), written.last_hidden_state[0]))
        assert torch.equal(
            model._shift_right(given["input_ids"])[:, 1:], given["input_ids"][:, :-1]
        )
    assert found[0][0] == found[1][0]
    close(found[1][1], found[0][1])
