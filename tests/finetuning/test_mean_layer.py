"""A BERT whose first token holds the mean of all tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ownbert.checkpoint import load, load_tokenizer, save
from ownbert.finetuning.token_scores import can_hold_means, with_mean_layer
from ownbert.nn.model import Model
from support.tiny import CONFIG


def test_transformers_pools_the_mean_of_the_tokens(
    pretrained: Path, tmp_path: Path, transformers: Any
):
    model = load(pretrained, heads=[], pooler=False)
    assert can_hold_means(model)
    save(with_mean_layer(model), tmp_path / "longer", tokenizer=load_tokenizer(pretrained))
    before, longer = (
        transformers.AutoModel.from_pretrained(p) for p in (pretrained, tmp_path / "longer")
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained)
    batch = tokenizer(
        ["red1 red2 w3", "blue1", "w1 w2 green3 w5 w6"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        tokens, pooled = before(**batch).last_hidden_state, longer(**batch).pooler_output
    kept = batch["attention_mask"][..., None]
    means = (tokens * kept).sum(1) / kept.sum(1)
    for own, mean in zip(pooled, means, strict=True):
        assert torch.corrcoef(torch.stack([own, mean]))[0, 1] > 0.99


def test_other_networks_have_none():
    for changes in ({"norm_first": True}, {"pruned_heads": {0: (1,)}}):
        assert not can_hold_means(Model(replace(CONFIG, **changes), []))
