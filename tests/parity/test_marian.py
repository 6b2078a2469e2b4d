"""Marian of Transformers 4.57.6: the same weights, the same scores, in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ownbert.checkpoint import save
from ownbert.exceptions import InputError
from ownbert.translation.transformer import log_probs, make_model
from ownbert.translation.translation_folder import load_translation
from support.floats import assert_close

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "decoder_vocab_size": 20,
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
CASES = {
    "shared": {},
    "scaled": {"scale_embedding": True, "activation_function": "swish"},
    "apart": APART,
}


def theirs(**changes: Any):
    torch.manual_seed(0)
    made = transformers.MarianMTModel(transformers.MarianConfig(**(SIZES | changes))).eval()
    for name, parameter in made.named_parameters():
        if "embed_positions" not in name:
            parameter.data.normal_(std=0.3)
    made.final_logits_bias.normal_()
    return made


def scores(model, source: torch.Tensor, target: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
    out = model(input_ids=source, attention_mask=told, decoder_input_ids=target)
    return out.logits.log_softmax(-1)


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source, target = torch.randint(3, 20, (3, 7)), torch.randint(3, 17, (3, 5))
    told = torch.ones(3, 7, dtype=torch.long)
    told[0, 5:], told[1, 2:] = 0, 0
    return source, target, told


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_loads_theirs(case: str, tmp_path: Path):
    model = theirs(**CASES[case])
    model.save_pretrained(tmp_path)
    ours, _ = load_translation(tmp_path)
    source, target, told = data()
    found = log_probs(ours, source, target, told)
    assert_close(found, scores(model, source, target, told))


@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False])
def test_they_load_ours(shared: bool, tmp_path: Path):
    torch.manual_seed(1)
    ours = make_model(
        20,
        20,
        N=2,
        d_model=16,
        d_ff=24,
        h=2,
        share_embeddings=shared,
        position_embedding_type="sinusoidal_halves",
    ).eval()
    for parameter in ours.parameters():
        parameter.data.normal_(std=0.3)
    save(ours, tmp_path)
    model, loading = transformers.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["unexpected_keys"]
    assert all("embed_positions" in name for name in loading["missing_keys"])
    source, target, told = data()
    found = scores(model.eval(), source, target, told)
    assert_close(found, log_probs(ours, source, target, told))
    again, _ = load_translation(tmp_path)
    assert torch.equal(
        log_probs(again, source, target, told), log_probs(ours, source, target, told)
    )


@torch.no_grad()
@pytest.mark.parametrize("changes", [{"norm_first": True}, {}])
def test_what_marian_cannot_do_it_refuses(changes: dict[str, Any], tmp_path: Path):
    """Norms first, and the paper's order of channels: ours to load, not theirs."""
    torch.manual_seed(1)
    ours = make_model(20, 20, N=1, d_model=16, d_ff=24, h=2, **changes).eval()
    save(ours, tmp_path)
    with pytest.raises(ValueError, match="ownbert-marian"):
        transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    again, _ = load_translation(tmp_path)
    source, target, told = data()
    assert torch.equal(
        log_probs(again, source, target, told), log_probs(ours, source, target, told)
    )


def test_a_value_that_changes_the_result_is_refused(tmp_path: Path):
    theirs(normalize_before=True).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="normalize_before is True"):
        load_translation(tmp_path)


def test_every_tensor_has_its_place(tmp_path: Path):
    from safetensors.torch import load_file, save_file

    theirs().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    lost = "model.decoder.layers.2.encoder_attn.out_proj.bias"
    save_file({n: t for n, t in weights.items() if n != lost}, path)
    with pytest.raises(InputError, match=r"missing tensor decoder\.blocks\.2\.cross_attention"):
        load_translation(tmp_path)
    wrong = {"model.encoder.layers.0.fc1.bias": torch.ones(24, dtype=torch.int64)}
    save_file(weights | wrong, path)
    with pytest.raises(InputError, match=r"encoder\.blocks\.0\.feed_forward\.up\.bias .* contains"):
        load_translation(tmp_path)
    save_file(weights | {"model.decoder.layers.2.fc2.bias": torch.ones(9)}, path)
    with pytest.raises(InputError, match=r"down\.bias .* has shape \(9,\), expected \(16,\)"):
        load_translation(tmp_path)
    save_file(weights | {"model.decoder.layers.3.fc1.bias": torch.ones(3)}, path)
    with pytest.raises(InputError, match=r"unexpected tensor model\.decoder\.layers\.3\.fc1"):
        load_translation(tmp_path)
