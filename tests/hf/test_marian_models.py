"""MarianMTModel with Transformers' arguments and outputs, against Transformers 4.57.6."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert  # noqa: E402
import ownbert.hf as hf  # noqa: E402
from ownbert.checkpoint.transformer_folder import load_translation  # noqa: E402
from ownbert.exceptions import InputError  # noqa: E402
from ownbert.transformer import make_model, to_batch  # noqa: E402
from support.padded_models import arguments, close  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 1,
    "activation_function": "relu",
}
APART = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}


def pair(folder: Path, **changes: Any) -> tuple[Any, Any]:
    """Theirs, every weight random, and ours of the same folder."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(**(SIZES | changes), attn_implementation="eager")
    theirs = transformers.MarianMTModel(config).eval()
    for name, parameter in theirs.named_parameters():
        if "embed_positions" not in name:
            parameter.data.normal_(std=0.3)
    theirs.final_logits_bias.normal_()
    theirs.save_pretrained(folder)
    return theirs, hf.MarianMTModel.from_pretrained(folder)


def inputs() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    source, target = (torch.randint(3, 20, size, generator=draw) for size in ((3, 7), (3, 5)))
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, 5:], mask[1, 2:] = 0, 0
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}


def assert_same(found: Any, expected: Any, mask: torch.Tensor) -> None:
    """Equal by the same names; of the encoder only at tokens."""
    assert [n for n in found if n != "past_key_values"] == [
        n for n in expected if n != "past_key_values"
    ]
    for name in found.keys() - {"past_key_values"}:
        close(found[name], expected[name], mask.bool() if name.startswith("encoder") else None)


@pytest.mark.parametrize("changes", [{}, APART, {"scale_embedding": True}], ids=str)
def test_the_same_outputs_by_the_same_names(changes: dict[str, Any], tmp_path: Path):
    theirs, ours = pair(tmp_path, **changes)
    assert arguments(type(ours)) == arguments(type(theirs))
    given = inputs()
    embeds = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(3))
    right = torch.tensor([[1] * 5, [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    for extra in (
        {},
        {"use_cache": False},
        {"output_hidden_states": True, "output_attentions": True},
        {"head_mask": torch.rand(2, 4, generator=torch.Generator().manual_seed(2))},
        {"decoder_attention_mask": right, "labels": given["decoder_input_ids"]},
        {"decoder_attention_mask": torch.tensor([[0, 0, 1, 1, 1], [0] + [1] * 4, [1] * 5])},
        {"input_ids": None, "inputs_embeds": embeds},
        {"decoder_input_ids": None, "decoder_inputs_embeds": embeds[:, :4]},
        {"decoder_input_ids": None, "labels": given["decoder_input_ids"]},
    ):
        call = given | extra
        with torch.no_grad():
            expected, found = theirs(**call), ours(**call)
        seen = call.get("decoder_attention_mask")
        if seen is not None:
            for out in (expected, found):
                out["logits"] = out["logits"][seen.bool()]
        assert_same(found, expected, given["attention_mask"])
    ours.packed = False
    with torch.no_grad():
        expected, found = theirs(**given), ours(**given)
    close(found.encoder_last_hidden_state, expected.encoder_last_hidden_state)
    close(found.logits, expected.logits)


def test_tuples(tmp_path: Path):
    theirs, ours = pair(tmp_path)
    extra = {"output_hidden_states": True, "output_attentions": True, "use_cache": False}
    extra |= {"return_dict": False, "labels": inputs()["decoder_input_ids"]}
    given = inputs() | {"attention_mask": torch.ones(3, 7, dtype=torch.long)}
    with torch.no_grad():
        close(ours(**given, **extra), theirs(**given, **extra))


def test_losses_and_gradients(tmp_path: Path):
    theirs, ours = pair(tmp_path)
    given = inputs()
    labels = given.pop("decoder_input_ids")
    labels[0, 3:] = -100
    expected, found = theirs(**given, labels=labels), ours(**given, labels=labels)
    assert found.past_key_values is None
    close(found.loss, expected.loss)
    expected.loss.backward()
    found.loss.backward()
    words = ours.get_input_embeddings().weight.grad
    torch.testing.assert_close(words, theirs.model.shared.weight.grad, atol=1e-5, rtol=1e-4)
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    checked = {name: p.grad for name, p in ours.named_parameters() if name in grads}
    assert len(checked) > 20
    for name, grad in checked.items():
        torch.testing.assert_close(grad, grads[name], atol=1e-5, rtol=1e-4, msg=name)


@torch.no_grad()
def test_an_encoder_read_once_and_a_cache(tmp_path: Path):
    theirs, ours = pair(tmp_path)
    given = inputs()
    whole = theirs(**given).logits
    source = {name: given[name] for name in ("input_ids", "attention_mask")}
    encoded = ours.get_encoder()(**source)
    for outputs in (encoded, encoded.to_tuple(), theirs.get_encoder()(**source)):
        found = ours(
            encoder_outputs=outputs,
            attention_mask=given["attention_mask"],
            decoder_input_ids=given["decoder_input_ids"],
        )
        close(found.logits, whole)
        assert found.encoder_last_hidden_state is not None
    past, rows = None, []
    for place in range(5):
        out = ours(
            encoder_outputs=encoded,
            attention_mask=given["attention_mask"],
            decoder_input_ids=given["decoder_input_ids"][:, place : place + 1],
            past_key_values=past,
        )
        past = tuple(out.past_key_values[layer] for layer in range(3))
        rows.append(out.logits)
    close(torch.cat(rows, 1), whole)


@pytest.mark.parametrize("changes", [{}, APART], ids=["shared", "apart"])
def test_folders_and_state_dicts_in_both_directions(changes: dict[str, Any], tmp_path: Path):
    theirs, ours = pair(tmp_path / "theirs", **changes)
    state = {n: t for n, t in theirs.state_dict().items() if "embed_positions" not in n}
    assert ours.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())
    given, expected = inputs(), theirs(**inputs()).logits
    fresh = hf.MarianMTModel(ours.config)
    fresh.load_state_dict(state)
    close(fresh.eval()(**given).logits, expected)
    ours.save_pretrained(tmp_path / "ours")
    assert {"final_logits_bias", "model.encoder.layers.1.fc1.weight"} <= {
        name for name, _ in ours.named_parameters()
    }
    again, info = transformers.MarianMTModel.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not info["unexpected_keys"]
    assert all("embed_positions" in name for name in info["missing_keys"])
    assert again.config.architectures == ["MarianMTModel"]
    close(again.eval()(**given).logits, expected)
    loaded = ownbert.load(tmp_path / "theirs")
    assert type(loaded) is hf.MarianMTModel
    assert not loaded.training
    close(loaded(**given).logits, expected)
    packed, _ = load_translation(tmp_path / "theirs")
    batch, _ = to_batch(given["input_ids"], given["decoder_input_ids"], given["attention_mask"])
    assert torch.equal(loaded(batch).hidden, packed(batch).hidden)
    for model in (loaded, packed):
        ownbert.save(model, tmp_path / "again")
        close(ownbert.load(tmp_path / "again")(**given).logits, expected)
    halved = hf.MarianMTModel.from_pretrained(tmp_path / "theirs", dtype="bfloat16")
    assert halved.dtype == torch.bfloat16


def test_a_model_that_marian_cannot_say(tmp_path: Path):
    """Norms first and the paper's positions are kept by the classes with Transformers' API."""
    torch.manual_seed(1)
    model = make_model(20, 20, N=1, d_model=16, d_ff=24, h=2, norm_first=True).eval()
    ownbert.save(model, tmp_path / "one")
    loaded = ownbert.load(tmp_path / "one")
    loaded.config.decoder_start_token_id, loaded.config.pad_token_id = 1, 0
    loaded.save_pretrained(tmp_path / "two")
    again = ownbert.load(tmp_path / "two")
    assert again.model.decoder.config == model.decoder.config
    close(again(**inputs()).logits, loaded(**inputs()).logits)


GREEDY = [
    {},
    {"max_new_tokens": 6},
    {"max_length": 4},
    {"use_cache": False},
    {"bad_words_ids": [[5], [7], [11]]},
    {"bad_words_ids": [[5], [2]]},
    {"forced_eos_token_id": 2, "max_length": 6},
    {"eos_token_id": [9, 2], "bad_words_ids": [[2], [4]]},
    {"eos_token_id": [2]},
]


@pytest.mark.parametrize("options", GREEDY, ids=str)
def test_greedy_generation(options: dict[str, Any], tmp_path: Path):
    theirs, ours = pair(tmp_path)
    theirs.final_logits_bias[0, 2] = ours.final_logits_bias.data[0, 2] = 4
    given = {name: inputs()[name] for name in ("input_ids", "attention_mask")}
    expected = theirs.generate(**given, num_beams=1, do_sample=False, **options)
    given["inputs"] = given.pop("input_ids")
    found = ours.generate(**given, **options)
    assert found.tolist() == expected.tolist()
    assert (found == 2).any() or options.get("max_length") == 4


@pytest.mark.parametrize("bias", [0.0, 2.0, 4.0])
def test_beams_with_options_of_the_end(bias: float, tmp_path: Path):
    theirs, ours = pair(tmp_path)
    theirs.final_logits_bias[0, 2] = ours.final_logits_bias.data[0, 2] = bias
    given = {name: inputs()[name] for name in ("input_ids", "attention_mask")}
    for options in (
        *({"length_penalty": penalty} for penalty in (0.5, -1.0)),
        {"forced_eos_token_id": 2},
        {"bad_words_ids": [[2], [5], [11], [13]]},
        {"eos_token_id": [2, 9], "length_penalty": 2.0},
        {"early_stopping": True, "length_penalty": 2.0, "repetition_penalty": 1.0, "top_k": 50},
        {"early_stopping": "never"},
        {"eos_token_id": [9, 2, 14], "bad_words_ids": [[9], [4]], "forced_eos_token_id": 9},
    ):
        for length in (5, 9):
            settings = {"num_beams": 3, "max_length": length, **options}
            expected = theirs.generate(**given, do_sample=False, **settings)
            assert ours.generate(**given, **settings).tolist() == expected.tolist(), settings


def test_beams_and_what_generation_refuses(tmp_path: Path):
    _, ours = pair(tmp_path)
    given = {name: inputs()[name] for name in ("input_ids", "attention_mask")}
    beams = ours.generate(**given, num_beams=3, length_penalty=0.6, max_length=8)
    assert beams.shape[0] == 3
    assert beams.shape[1] <= 8
    assert (beams[:, 0] == 1).all()
    for options, message in (
        ({"do_sample": True}, "do_sample must be False"),
        ({"max_length": 1}, "max_length is 1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be a whole number, at least 1"),
        ({"num_beams": "3"}, "num_beams is '3'; it must be a whole number"),
        ({"bad_words_ids": [3]}, r"bad_words_ids\[0\] is 3; it must be a list"),
        (
            {"attention_mask": torch.ones(3, 3)},
            r"attention_mask has shape \(3, 3\); it must be \(3, 7",
        ),
        ({"bad_words_ids": [[3, 4]]}, "can only forbid single tokens"),
        ({"bad_words_ids": [[20]]}, "bad_words_ids contains 20; there are 20 tokens"),
        ({"eos_token_id": []}, r"eos_token_id is \[\]; a token is needed"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size must be 0"),
        ({"early_stopping": 2}, "early_stopping is 2; it must be true, false or 'never'"),
        ({"num_beam": 3}, "no argument 'num_beam'; did you mean num_beams"),
    ):
        with pytest.raises(InputError, match=message):
            ours.generate(**(given | options))
    assert ours.can_generate()
    with pytest.warns(match="early_stopping have no effect with num_beams=1"):
        ours.generate(**given, length_penalty=2.0)
    path = tmp_path / "generation_config.json"
    path.write_text('{"bad_words_ids": [[3]], "forced_bos_token_id": 4}')
    with pytest.warns(match="generate ignores forced_bos_token_id 4 of the generation config"):
        hf.MarianMTModel.from_pretrained(tmp_path).generate(**given)
    path.write_text('{"do_sample": true, "num_beams": 2}')
    ownbert.save(ownbert.load(tmp_path), tmp_path / "again")
    model = hf.MarianMTModel.from_pretrained(tmp_path / "again")
    with pytest.raises(InputError, match=r"config.json: do_sample is True, but generate"):
        model.generate(**given)
    model.generate(**given, do_sample=False)
    config = transformers.GenerationConfig(num_return_sequences=2, num_beams=2)
    with pytest.raises(InputError, match="the generation config: num_return_sequences is 2"):
        model.generate(**given, generation_config=config)
    path.write_text('{"num_beams": 4, "num_beam_groups": 2, "early_stopping": true}')
    with pytest.warns(match="num_beam_groups 2 of the generation config, so its texts may diff"):
        hf.MarianMTModel.from_pretrained(tmp_path).generate(**given)


def test_configurations():
    theirs, ours = transformers.MarianConfig(), hf.MarianConfig()
    for key, value in hf.MarianConfig.defaults.items():
        assert getattr(ours, key) == getattr(theirs, key) == (value or getattr(theirs, key))
    assert (ours.hidden_size, ours.num_attention_heads, ours.num_hidden_layers) == (1024, 16, 12)
    assert hf.MarianConfig(100, None, 64, pad_token_id=0).max_position_embeddings == 64
    for changes, message in (
        ({"activation_function": "sin"}, "activation_function 'sin' is not known"),
        ({"d_model": 10}, "hidden_size 10 must be a multiple of num_attention_heads 16"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop is 0.1; it must be 0"),
    ):
        with pytest.raises(InputError, match=message):
            hf.MarianConfig(**changes)


def test_what_is_refused(tmp_path: Path):
    _, ours = pair(tmp_path)
    given = inputs()
    for extra, message in (
        ({"decoder_input_ids": None}, "give decoder_input_ids or labels"),
        (
            {"decoder_input_ids": torch.full((3, 2), 20)},
            "decoder_input_ids contains 20; there are 20",
        ),
        ({"labels": torch.full((3, 5), 20)}, "labels contains 20; there are 20 classes"),
        ({"encoder_outputs": (torch.ones(3, 7, 8),)}, r"it must be \(3, length, 16\)"),
        ({"token_type_ids": given["input_ids"]}, "no argument 'token_type_ids'"),
    ):
        with pytest.raises(InputError, match=message):
            ours(**(given | extra))
    for action in (
        lambda: ours.prune_heads({0: [1]}),
        lambda: ours.base_model,
        lambda: ownbert.load(tmp_path, heads=("mlm",)),
        lambda: hf.MarianMTModel.from_pretrained(tmp_path, ignore_mismatched_sizes=True),
        lambda: hf.MarianMTModel.from_pretrained(tmp_path, encoder_layers=3),
        lambda: hf.BertModel.from_pretrained(tmp_path),
    ):
        with pytest.raises(InputError):
            action()
    with pytest.raises(InputError, match=r"unexpected tensor model\.encoder\.layers\.1"):
        hf.MarianMTModel.from_pretrained(tmp_path, encoder_layers=1)
    assert ours.lm_head.weight is ours.get_input_embeddings().weight
