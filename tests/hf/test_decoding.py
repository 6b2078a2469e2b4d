"""Decoder mode: causal masks, cross attention, caches, generation, against Transformers 4.57.6."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert  # noqa: E402
import ownbert.hf as hf  # noqa: E402
from ownbert.exceptions import InputError  # noqa: E402
from support.padded_models import close, padded, pair  # noqa: E402

KINDS = ["absolute", "relative_key", "relative_key_query"]
DECODER = {"is_decoder": True, "add_cross_attention": True}


def encoded(seed: int = 0) -> dict[str, torch.Tensor]:
    """What a decoder attends to: (3, 7, 32), padded."""
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    hidden = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(seed))
    return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("mask", ["right", "left", "pairs"])
def test_a_decoder(kind: str, cached: bool, mask: str):
    if cached and kind != "absolute":
        pytest.skip("with a cache, theirs takes all distances from the last token")
    theirs, ours = pair("BertModel", position_embedding_type=kind, **DECODER)
    given = padded() | encoded()
    if mask == "left":
        given["attention_mask"] = given["attention_mask"].flip(1)
    elif mask == "pairs":
        draw = torch.Generator().manual_seed(2)
        given["attention_mask"] = (torch.rand(3, 9, 9, generator=draw) < 0.7).long()
        given["encoder_attention_mask"] = (torch.rand(3, 9, 7, generator=draw) < 0.7).long()
    extra: dict[str, Any] = {"output_attentions": True, "use_cache": cached}
    with torch.no_grad():
        expected, found = theirs(**given, **extra), ours(**given, **extra)
    keep = given["attention_mask"]
    keep = keep.bool() if keep.ndim == 2 else None
    for name in ("last_hidden_state", "attentions", "cross_attentions"):
        close(found[name], expected[name], keep)
    assert ("past_key_values" in found) == cached
    if cached and mask == "right":
        for layer in range(2):
            ours_kept, theirs_kept = found.past_key_values[layer], expected.past_key_values[layer]
            assert len(ours_kept) == len(theirs_kept) == 4
            for one, other in zip(ours_kept, theirs_kept, strict=True):
                assert one.shape == other.shape
            close(ours_kept[0] * keep[:, None, :, None], theirs_kept[0] * keep[:, None, :, None])
            close(ours_kept[2:], theirs_kept[2:])


@pytest.mark.parametrize("kind", [*KINDS, "sinusoidal", "rotary", "alibi"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_cache_changes_nothing(kind: str, cross: bool, steps: int):
    torch.manual_seed(4)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = hf.BertConfig(
        vocab_size=60,
        position_embedding_type=kind,
        is_decoder=True,
        add_cross_attention=cross,
        intermediate_size=48,
        max_position_embeddings=40,
        **sizes,
    )
    ours = hf.BertLMHeadModel(config).eval()
    ids = torch.randint(3, 60, (3, 9))
    extra = encoded() if cross else {}
    whole = ours(ids, use_cache=False, **extra).logits
    assert "past_key_values" not in ours(ids, use_cache=False, **extra)
    past, parts = None, []
    for part in (ids[:, :3], *ids[:, 3:].split(steps, 1)):
        out = ours(part, past_key_values=past, use_cache=True, **extra)
        past = out.past_key_values
        parts.append(out.logits)
    close(torch.cat(parts, 1), whole)
    assert past.get_seq_length() == 9
    as_tuples = tuple(
        tuple(x[:, :, :5] if i < 2 else x for i, x in enumerate(past[layer])) for layer in range(2)
    )
    close(ours(ids[:, 5:6], past_key_values=as_tuples, **extra).logits, whole[:, 5:6])


@pytest.mark.parametrize("architecture", ["BertLMHeadModel", "RobertaForCausalLM"])
def test_generates_as_they_do(architecture: str):
    theirs, ours = pair(architecture, is_decoder=True)
    model_type = ours.config.model_type
    ids = torch.randint(3, 60, (3, 4), generator=torch.Generator().manual_seed(1))
    pad, end = ours.config.pad_token_id, 2
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": pad}
    settings |= {"no_repeat_ngram_size": 0, "output_scores": False}  # without effect
    expected = theirs.generate(ids, **settings, eos_token_id=end)
    assert torch.equal(ours.generate(inputs=ids, **settings, eos_token_id=end), expected)
    assert torch.equal(ours.generate(ids, **settings, eos_token_id=end, use_cache=False), expected)
    # A token that it does generate ends the text.
    end = int(expected[0, 6])
    expected = theirs.generate(ids, **settings, eos_token_id=end)
    assert torch.equal(ours.generate(ids, **settings, eos_token_id=end), expected)
    given = {name: value.flip(1) for name, value in padded(model_type).items()}
    expected = theirs.generate(**given, max_length=16, do_sample=False, eos_token_id=2)
    assert torch.equal(ours.generate(**given, max_length=16, eos_token_id=2), expected)
    types = torch.zeros_like(ids)
    expected = theirs.generate(ids, token_type_ids=types, **settings, eos_token_id=2)
    for cached in (True, False):
        found = ours.generate(
            ids, token_type_ids=types, **settings, eos_token_id=2, use_cache=cached
        )
        assert torch.equal(found, expected)
    for times in (1, 8) if model_type == "bert" else (1,):  # 20 new tokens, and 8 up to the last
        texts = ids.repeat(1, times)
        expected = theirs.generate(texts, do_sample=False, eos_token_id=2)
        assert torch.equal(ours.generate(texts, eos_token_id=2), expected)
    for wrong, message in [
        ({"num_beams": 4}, "num_beams must be 1"),
        ({"repetition_penalty": 1.2}, "repetition_penalty must be 1"),
        ({"max_length": 4}, "the input has 4 tokens; max_length must be larger"),
        ({"max_new_tokens": "5"}, "max_new_tokens is '5'; it must be a whole number, at least 1"),
        ({"eos_token_id": "."}, "eos_token_id is '.'; it must be a token id or a list of them"),
        ({"input_ids": ids[0]}, r"input_ids has shape \(4,\); it must be \(batch, length\)"),
        ({"attention_mask": ids[:, :3]}, r"attention_mask has shape \(3, 3\); it must be \(3, 4\)"),
        ({"generation_config": {"max_length": 9}}, "is a dict; it must be a GenerationConfig"),
    ]:
        with pytest.raises(InputError, match=message):
            ours.generate(**{"input_ids": ids, **wrong})


def test_options_of_a_folder_that_are_not_supported(tmp_path: Path):
    pair("BertLMHeadModel", is_decoder=True)[1].save_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    neutral = {"repetition_penalty": 1.0, "min_length": 0, "suppress_tokens": [], "top_k": 50}
    for values, warned in [
        (neutral, None),
        ({"repetition_penalty": 1.2, "min_new_tokens": 4}, "repetition_penalty 1.2, min_new_tok"),
        ({"num_beam_groups": 2, "max_time": 1.0}, "num_beam_groups 2, max_time 1.0 of the gen"),
        ({"bad_words_ids": [[5]]}, r"bad_words_ids \[\[5\]\] of the generation config"),
    ]:
        path.write_text(json.dumps(values))
        for model in (hf.BertLMHeadModel.from_pretrained(tmp_path), ownbert.load(tmp_path)):
            expected = pytest.warns(match=f"generate ignores {warned}") if warned else nullcontext()
            with expected:
                model.generate(torch.tensor([[5, 6]]), max_new_tokens=2)
    path.write_text('{"num_beams": 4}')
    with pytest.raises(InputError, match=r"config.json: num_beams is 4, but generate is greedy h"):
        ownbert.load(tmp_path).generate(torch.tensor([[5, 6]]))
    path.write_text('{"max_length": "9"}')
    with pytest.raises(InputError, match=r"config.json: max_length is '9'; it must be a whole num"):
        hf.BertLMHeadModel.from_pretrained(tmp_path)


def test_cross_attention_that_is_not_there():
    _, ours = pair("BertModel", is_decoder=True)
    with pytest.raises(InputError, match="add_cross_attention true"):
        ours(**padded(), **encoded())
