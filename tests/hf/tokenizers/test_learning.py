"""What tokenizers learn and are told by scripts, run by Transformers' classes and ours."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert.hf as hf  # noqa: E402
from ownbert.exceptions import InputError  # noqa: E402
from support.tokenizer_folders import (  # noqa: E402
    albert_folder,
    bert_folder,
    roberta_folder,
    t5_folder,
    xlm_roberta_folder,
)

FOLDERS = {
    "BertTokenizerFast": bert_folder,
    "RobertaTokenizerFast": roberta_folder,
    "AlbertTokenizerFast": albert_folder,
    "XLMRobertaTokenizerFast": xlm_roberta_folder,
}
TEXTS = ["Sheep graze on the high meadow.", "Wolves howl; nobody answers!", "sheep, sheep"] * 9


def both(name: str, folder: Path) -> list[Any]:
    return [getattr(lib, name).from_pretrained(folder) for lib in (transformers, hf)]


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("renaming", [False, True])
def test_a_vocabulary_of_other_texts(name: str, renaming: bool, tmp_path: Path):
    folder, found = FOLDERS[name](tmp_path / "old"), []
    for number, tokenizer in enumerate(both(name, folder)):
        options: dict[str, Any] = {"show_progress": False}
        if renaming:
            options["special_tokens_map"] = {
                tokenizer.cls_token: "<c>",
                tokenizer.mask_token: "<m>",
            }
            options["new_special_tokens"] = ["<new>"]
        new = tokenizer.train_new_from_iterator([TEXTS[:5], TEXTS[5:]], 320, **options)
        new.save_pretrained(tmp_path / str(number))
        again = type(tokenizer).from_pretrained(tmp_path / str(number))
        assert any("sheep" in token for token in new.get_vocab())
        assert len(new) < len(tokenizer) or name != "BertTokenizerFast"
        # Which of several pieces as frequent as each other is learnt differs from run to run.
        around = [new.decode(each("sheep <new>", "meadow").input_ids) for each in (new, again)]
        special = (new.all_special_tokens, new.all_special_ids, new.cls_token, new.mask_token)
        found.append((around, special, {token for token in new.get_vocab() if len(token) == 1}))
    assert found[0] == found[1]


def test_additional_tokens(tmp_path: Path):
    for tokenizer in both("BertTokenizerFast", bert_folder(tmp_path)):
        before = len(tokenizer)
        with pytest.raises((InputError, AssertionError)):
            tokenizer.add_special_tokens({"additional_special_tokens": "<x1>"})
        assert len(tokenizer) == before
        tokenizer.add_tokens(["<a>", "<b>"])
        tokenizer.additional_special_tokens_ids = [before, before + 1]
        assert tokenizer.additional_special_tokens == ["<a>", "<b>"]
        assert tokenizer.additional_special_tokens_ids == [before, before + 1]


def test_sentinels(tmp_path: Path):
    found = [
        (sorted(each.get_sentinel_tokens()), sorted(each.get_sentinel_token_ids()))
        for each in both("T5TokenizerFast", t5_folder(tmp_path))
    ]
    assert found[0] == found[1]
    assert found[0][0]


def test_what_transformers_takes_for_its_own(tmp_path: Path):
    tokenizer = hf.BertTokenizer.from_pretrained(bert_folder(tmp_path))
    assert isinstance(tokenizer, transformers.PreTrainedTokenizerBase)
    rows = [tokenizer("a lazy dog"), tokenizer("fox")]
    batch = transformers.DataCollatorWithPadding(tokenizer)(rows)
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    masked = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.9)(rows)
    assert (masked["labels"] != -100).any()
    for again in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert type(again) is type(tokenizer)
        assert again("a lazy dog").input_ids == rows[0].input_ids


def test_a_missing_folder_is_an_os_error(tmp_path: Path):
    for load in (
        hf.BertModel.from_pretrained,
        hf.BertConfig.from_pretrained,
        hf.BertTokenizer.from_pretrained,
        hf.AutoTokenizer.from_pretrained,
    ):
        for place in (tmp_path / "none", tmp_path):
            with pytest.raises(OSError, match=str(tmp_path)):
                load(place)
