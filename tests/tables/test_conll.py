"""CoNLL columns: what is read, and what is refused."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from ownbert import InputError
from ownbert.corpus.documents import read_documents
from ownbert.exceptions import InputWarning
from ownbert.tables.conll import ConllSentence, read_conll

PLAIN = "Ann B-x\nsaw O\n\n\nBob B-x\n"


def sentences(path: Path, text: str, **options) -> list[ConllSentence]:
    path.write_text(text, encoding="utf-8")
    return list(read_conll(path, **{"tags": True, **options}))


def test_tabs_and_blanks_and_gzip_are_the_same(tmp_path: Path):
    wanted = [
        ConllSentence(1, ("Ann", "saw"), ("B-x", "O")),
        ConllSentence(5, ("Bob",), ("B-x",)),
    ]
    assert sentences(tmp_path / "a.conll", PLAIN) == wanted
    assert sentences(tmp_path / "b.txt", PLAIN.replace(" ", "\t").rstrip("\n")) == wanted
    assert sentences(tmp_path / "c", PLAIN.replace(" ", "   ").replace("\n", "\r\n")) == wanted
    packed = tmp_path / "a.conll.gz"
    packed.write_bytes(gzip.compress(PLAIN.encode()))
    assert list(read_conll(packed, tags=True)) == wanted


def test_columns_by_number(tmp_path: Path):
    text = "1 Ann NNP B-x\n2 saw VBD O\n"
    found = sentences(tmp_path / "a.conll", text, word_column="2", tag_column="3")
    assert found == [ConllSentence(1, ("Ann", "saw"), ("NNP", "VBD"))]
    last = sentences(tmp_path / "a.conll", text, word_column="2")
    assert last[0].tags == ("B-x", "O")
    for wrong in ("5", "0", "-1", "ner"):
        with pytest.raises(InputError, match=f"no column '{wrong}' .*numbered from 1 to 4"):
            sentences(tmp_path / "a.conll", text, tag_column=wrong)
    with pytest.raises(InputError, match="column 2 cannot be both the word and the tag"):
        sentences(tmp_path / "a.conll", text, word_column="2", tag_column="2")


def test_words_of_conllu_are_its_forms(tmp_path: Path):
    """Contracted words and empty nodes are no words of the sentence."""
    lines = ("1-2 vámonos _", "1 vamos VERB", "2 nos PRON", "2.1 fue VERB", "", "1 1 NUM", "")
    text = "".join(
        "\t".join([*each.split()[:2], "_", each.split()[2], *"______"]) + "\n" if each else "\n"
        for each in lines
    )
    found = sentences(tmp_path / "a.conllu", f"# text = vámonos\n{text}")
    assert [s.words for s in found] == [("vamos", "nos"), ("1",)]
    assert [s.tags for s in found] == [("VERB", "PRON"), ("NUM",)]
    numbers = sentences(tmp_path / "b.txt", text, word_column="2", tag_column="1")
    assert [s.tags for s in numbers] == [("1", "2"), ("1",)]
    lemmas = sentences(tmp_path / "b.txt", text, word_column="3")
    assert [s.tags for s in lemmas] == [s.tags for s in found]
    documents = read_documents(tmp_path / "a.conllu")
    assert [document.pieces for document in documents] == [["vamos nos"], ["1"]]


def test_comments_documents_and_words_that_start_with_a_hash(tmp_path: Path):
    tabs = "# text = a b\n-DOCSTART-\t-X-\n\n# one\n#\tO\n#tag\tB-x\n-DOCSTART-\tO\nb\tO\n"
    assert sentences(tmp_path / "a.conll", tabs) == [
        ConllSentence(5, ("#", "#tag"), ("O", "B-x")),
        ConllSentence(8, ("b",), ("O",)),
    ]
    blanks = "# id 1 2\n# O\na O\n"
    assert sentences(tmp_path / "b.conll", blanks)[0].words == ("#", "a")
    assert sentences(tmp_path / "c.conll", "#a O\n#b O\n")[0].words == ("#a", "#b")


@pytest.mark.parametrize("header", ["word\ttag", "token label", "Word POS Tag", "TOKEN\tNER"])
@pytest.mark.parametrize("blank", ["", "\n"])
def test_a_first_line_that_names_the_columns_is_left_out(tmp_path: Path, header: str, blank: str):
    columns = header.split()
    mark = "\t" if "\t" in header else " "
    rows = [mark.join([word, *["X"] * (len(columns) - 2), tag]) for word, tag in PAIRS]
    path = tmp_path / "a.conll"
    text = "\n".join(["# a longer comment", f"{header}{blank}", *rows]) + "\n"
    for tags in (True, False):
        with pytest.warns(InputWarning, match=r"a\.conll, line 2 names the columns") as found:
            (sentence,) = sentences(path, text, tags=tags)
        assert len(found) == 1
        assert sentence.words == ("Ann", "saw", "token")
        assert sentence.tags == (("B-x", "O", "O") if tags else ())
        assert sentence.line == 3 + bool(blank)


PAIRS = [("Ann", "B-x"), ("saw", "O"), ("token", "O")]


@pytest.mark.parametrize(
    "text",
    ["word tag\nAnn O\n\nword tag\n", "word B-x\nAnn O\n", "word O\ntag tag\n", "Ann tag\nb O\n"],
)
def test_a_first_line_of_words_and_tags_is_a_sentence(tmp_path: Path, text: str):
    first, *_ = sentences(tmp_path / "a.conll", text)
    assert first.words[0] == text.split()[0]
    assert first.line == 1


def test_wide_blanks_are_words_and_tabs_leave_blanks_in_words(tmp_path: Path):
    assert sentences(tmp_path / "a", "\u3000\tO\n1 000\tB-x\n")[0].words == ("\u3000", "1 000")
    assert sentences(tmp_path / "b", "\u3000 O\na\u00a0b O\n")[0].words == ("\u3000", "a\u00a0b")


def test_without_tags_a_column_of_words_will_do(tmp_path: Path):
    found = sentences(tmp_path / "a.conll", "Ann\nsaw\n\nBob\n", tags=False)
    assert found == [ConllSentence(1, ("Ann", "saw"), ()), ConllSentence(4, ("Bob",), ())]
    assert sentences(tmp_path / "b.conll", PLAIN, tags=False)[0].words == ("Ann", "saw")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Ann\nsaw\n", "line 1: 1 column; a word and its tag"),
        ("Ann O\n\nsaw\n", "line 3: 1 column, but line 1 has 2; a word and its tag"),
        ("Ann O\nNew York O\n", "line 2: 3 columns, but line 1 has 2"),
        ("Ann\tO\nsaw\t\n", r"line 2: the tag \(column 2\) is empty"),
        ("Ann\tO\n\tO\n", r"line 2: the word \(column 1\) is empty"),
        ("", "is empty"),
        ("\n\n \n", "is empty"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, message: str):
    with pytest.raises(InputError, match=rf"a\.conll(, )?.*{message}"):
        sentences(tmp_path / "a.conll", text)


# Of the files' own SOURCE.md.
COUNTS = {
    ("wnut17", "train"): (3394, 1975),
    ("wnut17", "dev"): (1009, 836),
    ("wnut17", "test"): (1287, 1079),
    ("weibo-ner", "train"): (1350, 1885),
    ("weibo-ner", "dev"): (270, 389),
    ("weibo-ner", "test"): (270, 414),
}


@pytest.mark.parametrize(("name", "part"), list(COUNTS))
def test_published_files_are_read_whole(shared_data: Path, name: str, part: str):
    path = shared_data / name / f"{part}.conll"
    found = list(read_conll(path, tags=True))
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert [w for s in found for w in s.words] == [line.split("\t")[0] for line in lines]
    tags = Counter(tag[0] for s in found for tag in s.tags)
    assert (len(found), tags["B"]) == COUNTS[name, part]
