"""Tiny tokenizers of every family, trained on a few lines, as the files that families release."""

import io
import json
from pathlib import Path

TEXT = """
The quick brown fox jumps over the lazy dog, and 1,234 other animals don't mind at all.
Transformers read tokens; tokens are pieces of words, and words are pieces of texts!
Où est la bibliothèque? L'été dernier, nous étions à Montréal. Ça va très bien, merci.
Die Größe der Straße überrascht Käufer; Übermut tut selten gut.
我喜欢自然语言处理。他们在北京大学学习机器学习,今天天气很好。
Привет, мир! Как дела сегодня? это маленький словарь
नमस्ते दुनिया こんにちは世界 안녕하세요 세계 ½ ﬁ Ⅳ ① … “quoted” — dash
"""
LINES = [line for line in TEXT.strip().splitlines() for _ in range(3)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Text that meets the vocabularies above, with what tokenizers stumble over.
SNIPPETS = [
    *LINES[::3],
    *("the", "The", "THE", "lazy dog", "don't", "do n't", "1,234", "9,", "été", "e\u0301te\u0301"),
    *("我喜欢", "北京", "Ünï", "ß", "ﬁ", "½", "\u0130", "Å", "\u212b", "가", "각", "\u1100\u1161"),
    *(" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\u200d", "\ufeff"),
    *("\x00", "\x1c", "\x7f", "\x85", "\ufffd", "``", "''", "▁", "▁▁", "##", "##s", "Ġ", "Ċ"),
    *(
        "[MASK]",
        "[mask]",
        "<mask>",
        "<s>",
        "</s>",
        "<unk>",
        "[CLS]",
        "<s>NOTUSED",
        "😀",
        "👩\u200d👧",
    ),
]


def bert_folder(folder: Path) -> Path:
    """vocab.txt alone, as Google released it."""
    from tokenizers.pre_tokenizers import BertPreTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    found = dict.fromkeys(SPECIAL)
    for line in (*LINES, TEXT.lower()):
        for word, _ in BertPreTokenizer().pre_tokenize_str(line):
            ends = range(1, len(word))
            tails = ["##" + word[end:] for end in ends if len(word) - end < 4]
            found |= dict.fromkeys([*word, *(f"##{c}" for c in word), word, *tails])
    tokens = [token for token in found if len(token) < 8 or token.startswith("##")]
    (folder / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens), encoding="utf-8")
    return folder


def roberta_folder(folder: Path) -> Path:
    """vocab.json and merges.txt, as fairseq's RoBERTa became them."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True, exist_ok=True)
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(
        LINES, vocab_size=480, min_frequency=1, special_tokens=special, show_progress=False
    )
    trained.save_model(str(folder))
    return folder


def pieces(path: Path, **settings) -> Path:
    """A SentencePiece model at ``path``."""
    import sentencepiece

    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    defaults = {"vocab_size": 260, "character_coverage": 1.0, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=stream,
        minloglevel=2,
        num_threads=1,
        **{**defaults, **settings},
    )
    path.write_bytes(stream.getvalue())
    return path


def xlm_roberta_folder(folder: Path, **settings) -> Path:
    pieces(folder / "sentencepiece.bpe.model", **settings)
    return described(folder, "XLMRobertaTokenizer", "xlm-roberta")


def camembert_folder(folder: Path) -> Path:
    pieces(folder / "sentencepiece.bpe.model")
    return described(folder, "CamembertTokenizer", "camembert")


def albert_folder(folder: Path, bos_id: int = -1, eos_id: int = -1) -> Path:
    pieces(
        folder / "spiece.model",
        pad_id=0,
        unk_id=1,
        bos_id=bos_id,
        eos_id=eos_id,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
        normalization_rule_name="nmt_nfkc",
    )
    return described(folder, "AlbertTokenizer", "albert")


def deberta_folder(folder: Path) -> Path:
    """Numbers of special tokens as in DeBERTa-v3; that of [MASK] follows the pieces."""
    names = ("pad", "bos", "eos", "unk")
    pieces(
        folder / "spm.model",
        **{f"{name}_id": number for number, name in enumerate(names)},
        **dict(
            zip((f"{n}_piece" for n in names), ("[PAD]", "[CLS]", "[SEP]", "[UNK]"), strict=True)
        ),
    )
    return described(folder, "DebertaV2Tokenizer", "deberta-v2")


def t5_folder(folder: Path) -> Path:
    pieces(
        folder / "spiece.model",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        normalization_rule_name="nmt_nfkc",
    )
    return described(folder, "T5Tokenizer", "t5")


def xlnet_folder(folder: Path) -> Path:
    pieces(
        folder / "spiece.model",
        unk_id=0,
        bos_id=1,
        eos_id=2,
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
        user_defined_symbols=["<eop>", ".", "(", ")", '"', "-", "–", "£", "€"],
        normalization_rule_name="nmt_nfkc",
    )
    return described(folder, "XLNetTokenizer", "xlnet")


def described(folder: Path, tokenizer_class: str, model_type: str) -> Path:
    config = {"tokenizer_class": tokenizer_class, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    return folder


FOLDERS = {
    "Bert": bert_folder,
    "Roberta": roberta_folder,
    "XLMRoberta": xlm_roberta_folder,
    "Camembert": camembert_folder,
    "Albert": albert_folder,
    "DebertaV2": deberta_folder,
    "T5": t5_folder,
    "XLNet": xlnet_folder,
}
