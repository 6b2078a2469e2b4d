"""Byte-level BPE and SentencePiece models: read, ids as Transformers', saved and read again."""

import json
from pathlib import Path

import pytest

from ownbert.exceptions import InputError
from ownbert.text.build import read_merges, read_model
from ownbert.text.tokenizer import Tokenizer
from support.tokenizer_folders import (
    FOLDERS,
    SNIPPETS,
    albert_folder,
    described,
    pieces,
    xlm_roberta_folder,
)

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
transformers.logging.set_verbosity_error()

SPECIAL = {
    "Bert": "[PAD] [UNK] [CLS] [SEP] [MASK]",
    "Roberta": "<pad> <unk> <s> </s> <mask>",
    "XLMRoberta": "<pad> <unk> <s> </s> <mask>",
    "Camembert": "<pad> <unk> <s> </s> <mask>",
    "Albert": "<pad> <unk> [CLS] [SEP] [MASK]",
    "T5": "<pad> <unk> </s>",
    "XLNet": "<pad> <unk> <cls> <sep> <mask>",
    "DebertaV2": "[PAD] [UNK] [CLS] [SEP] [MASK]",
}
KINDS = {"Bert": "wordpiece", "Roberta": "bpe"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in FOLDERS.items()}


@pytest.mark.parametrize("name", FOLDERS)
def test_as_transformers_and_round_trip(name: str, folders: dict[str, Path], tmp_path: Path):
    ours = Tokenizer.load(folders[name])
    theirs = getattr(transformers, f"{name}TokenizerFast").from_pretrained(folders[name])
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in SNIPPETS]
    assert ours.encode_batch(SNIPPETS) == expected
    assert ours.kind == KINDS.get(name, "unigram")
    assert ours.tokens(ours.special_ids) == SPECIAL[name].split()
    roles = ("pad", "unk", "eos") if name == "T5" else ("pad", "unk", "cls", "sep", "mask")
    assert ours.special_ids == tuple(getattr(theirs, f"{role}_token_id") for role in roles)
    own = ("pad", "unk", "sep") if name == "T5" else roles
    assert ours.special_ids == tuple(getattr(ours, f"{role}_id") for role in own)
    assert ours.vocab_size == len(theirs)
    assert ours.vocabulary() == theirs.convert_ids_to_tokens(range(len(theirs)))
    assert ours.decode(expected[0]) == theirs.decode(
        expected[0], clean_up_tokenization_spaces=False
    )

    ours.max_length = 77
    ours.save(tmp_path)
    back = Tokenizer.load(tmp_path)
    assert back.fingerprint() == ours.fingerprint()
    assert (back.kind, back.max_length, back.special_ids) == (ours.kind, 77, ours.special_ids)
    general = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [general(t, add_special_tokens=False)["input_ids"] for t in SNIPPETS] == expected
    one, other = ours.encode_batch(["the", "lazy dog"])
    assert general("the")["input_ids"] == ours.input_format.one(one)
    both = general("the", "lazy dog", return_token_type_ids=True)
    pair = both["input_ids"], both["token_type_ids"]
    assert pair == ours.input_format.pair(one, other)
    if name == "XLNet":
        assert general("the")["token_type_ids"] == ours.input_format.types(len(one) + 2)
    assert general.model_max_length == 77
    assert Tokenizer.load(tmp_path).save(tmp_path) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "bpe"},
        {"normalization_rule_name": "identity"},
        {"user_defined_symbols": ["<x>", "北京"], "normalization_rule_name": "nmt_nfkc_cf"},
    ],
)
def test_other_sentencepiece_models(settings: dict, tmp_path: Path):
    folder = xlm_roberta_folder(tmp_path, **settings)
    theirs = transformers.XLMRobertaTokenizerFast.from_pretrained(folder)
    texts = [*SNIPPETS, "a<x>b 北京大学 STRASSE"]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    Tokenizer.load(folder).save(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [again(text, add_special_tokens=False)["input_ids"] for text in texts] == expected
    for place in (folder, tmp_path / "saved"):
        assert Tokenizer.load(place).encode_batch(texts) == expected


def test_the_class_in_the_files_decides(tmp_path: Path):
    """An ALBERT vocabulary that also has SentencePiece's default tokens, which are those of T5."""
    folder = albert_folder(tmp_path / "a", bos_id=2, eos_id=3)
    theirs = transformers.AlbertTokenizerFast.from_pretrained(folder)
    theirs.save_pretrained(folder)
    Tokenizer.load(folder).save(tmp_path / "b")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    assert type(again) is type(theirs)
    for read in map(Tokenizer.load, (folder, tmp_path / "b")):
        assert read.mask_id == theirs.mask_token_id
        ids = read.input_format.one(read.encode("the lazy dog"))
        assert ids == theirs("the lazy dog")["input_ids"] == again("the lazy dog")["input_ids"]


def test_the_wire_format(tmp_path: Path):
    from sentencepiece import sentencepiece_model_pb2

    settings = {"pad_id": 3, "control_symbols": ["<a>"], "user_defined_symbols": ["é€"]}
    path = pieces(tmp_path / "m.model", **settings)
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    model = read_model(path)
    found = [(piece.text, piece.score, piece.kind) for piece in model.pieces]
    assert found == [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    assert model.charsmap == proto.normalizer_spec.precompiled_charsmap
    assert model.charsmap
    spec = proto.trainer_spec
    assert (model.model_type, model.unk_id, model.unk_piece) == (1, spec.unk_id, spec.unk_piece)


@pytest.mark.parametrize("cut", [1, 5, 100, 3000])
def test_a_damaged_model(cut: int, tmp_path: Path):
    whole = pieces(tmp_path / "m.model").read_bytes()
    for data in (whole[:-cut], b"\x07" * cut, b"", b"\xff" * cut):
        (tmp_path / "m.model").write_bytes(data)
        with pytest.raises(InputError, match=r"m\.model is .*SentencePiece model"):
            read_model(tmp_path / "m.model")


def test_a_model_of_words_is_refused(tmp_path: Path):
    path = pieces(tmp_path / "m.model", model_type="word")
    with pytest.raises(InputError, match="type word, not Unigram or BPE"):
        read_model(path)


def test_files_that_do_not_tell_or_do_not_fit(tmp_path: Path, folders: dict[str, Path]):
    pieces(tmp_path / "sentencepiece.bpe.model")
    with pytest.raises(InputError, match="must state tokenizer_class"):
        Tokenizer.load(tmp_path)
    described(tmp_path, "CamembertTokenizerFast", "bert")
    assert Tokenizer.load(tmp_path).special["cls_token"] == "<s>"

    folder = tmp_path / "roberta"
    folder.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_bytes((folders["Roberta"] / name).read_bytes())
    (folder / "merges.txt").write_text("#version: 0.2\nq zzz\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"merges\.txt does not fit .*vocab\.json"):
        Tokenizer.load(folder)
    (folder / "merges.txt").write_text("a b\na b c\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2: expected two tokens"):
        read_merges(folder / "merges.txt")
    (folder / "vocab.json").write_text('["a"]', encoding="utf-8")
    with pytest.raises(InputError, match="must be an object"):
        Tokenizer.load(folder)


def test_never_split_is_kept_in_the_folder(folders: dict[str, Path], tmp_path: Path):
    plain = Tokenizer.load(folders["Bert"])
    plain.save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["never_split"] = ["don't", "fox..."]
    path.write_text(json.dumps(config))
    keeping = Tokenizer.load(tmp_path)
    assert len(plain.encode_batch(["Don't"])[0]) > 1
    assert keeping.encode_batch(["Don't fox... fox"])[0] == [
        keeping.unk_id,
        keeping.unk_id,
        *plain.encode_batch(["fox"])[0],
    ]
    assert keeping.fingerprint() != plain.fingerprint()
    keeping.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint() == keeping.fingerprint()
    path.write_text(json.dumps({**config, "never_split": "don't"}))
    with pytest.raises(InputError, match=r"never_split is .* it must be a list"):
        Tokenizer.load(tmp_path)
