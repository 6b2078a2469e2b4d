"""Files in other encodings than UTF-8: each command reads them, and a refusal names the option."""

import csv
import gzip
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest

import ownbert
from ownbert import InputError
from ownbert.corpus.documents import read_documents
from ownbert.corpus.store import Store
from ownbert.files.encodings import reading_as
from ownbert.files.text_files import open_text
from ownbert.tables.conll import read_conll
from ownbert.tables.tables import columns, read_records
from support.cli import printed_rows, refusal, run_cli

GERMAN = "Größe, Straße: ägyptisch – „Ölförderung“ 5 €"
CHINESE = "上海的天气很好，我们去公园散步。"
JAPANESE = "東京タワーは高いです。ソ表能"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", GERMAN),
        ("latin-1", "Größe"),
        ("GBK", CHINESE),
        ("gb18030", CHINESE + "😀"),
        ("Big5", "臺灣的天氣很好"),
        ("shift_jis", JAPANESE),
        ("iso2022_jp", JAPANESE),
        ("utf-16", GERMAN + "😀"),
        ("utf-16-le", GERMAN + "ਊ਀"),  # bytes of line feeds
        ("utf-32", GERMAN),
        ("utf-7", GERMAN),
        ("cp500", "Größe"),
        ("utf-8-sig", GERMAN),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_encoding_of_python(tmp_path: Path, encoding: str, text: str, end: str, packed: bool):
    lines = [text, "", f"{text} 2", *(f"{text} {i}" * 20 for i in range(300))]
    data = end.join([*lines, ""]).encode(encoding)
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(data) if packed else data)
    with reading_as(encoding):
        assert [line for _, line in open_text(path)] == lines
        assert [number for number, _ in open_text(path)] == [*range(1, len(lines) + 1)]


def test_a_mark_of_utf8_says_what_a_file_is(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(f"{CHINESE}\n{GERMAN}\n".encode("utf-8-sig"))
    with reading_as("cp1252"):
        assert [line for _, line in open_text(path)] == [CHINESE, GERMAN]


def test_every_reader_reads_them(tmp_path: Path):
    for name, content in {
        "a.csv": f'text,label\n"{CHINESE}\n2",好\n',
        "a.tsv": f"text\tlabel\n{CHINESE}\n2\t好\n".replace("\n2", " 2"),
        "a.jsonl": json.dumps({"text": CHINESE, "label": "好"}, ensure_ascii=False),
        "a.conll": "上 B\n海 E\n",
        "a.txt": f"{CHINESE}\n",
    }.items():
        path = tmp_path / name
        path.write_bytes(content.encode("gbk"))
        with reading_as("gbk"):
            if name == "a.conll":
                assert next(read_conll(path, tags=True)).words == ("上", "海")
            elif name == "a.txt":
                assert next(read_documents(path)).pieces == [CHINESE]
            else:
                ((_, (text, label)),) = read_records(path, columns(path))
                assert (text.split()[0], label) == (CHINESE, "好")


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (GERMAN.encode("cp1252"), "line 1: not UTF-8 (byte 0xf6); save the file as UTF-8, or name "
         "its encoding, as in encoding='cp1252'"),
        ("Привет".encode("cp1251"), "encoding='cp1252'"),
        (CHINESE.encode("gbk"), "encoding='gb18030'"),
        (b"a\nID 7," + CHINESE.encode("gb18030"), "line 2: not UTF-8"),
        (GERMAN.encode("utf-16"), "is UTF-16: give encoding='utf-16', or save it as UTF-8"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_likely_encoding(tmp_path: Path, data: bytes, advice: str):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with reading_as(None), pytest.raises(InputError, match=re.escape(advice)):
        list(open_text(path))
    # Where a command has no such option it is not named.
    with pytest.raises(InputError) as caught:
        list(open_text(path))
    assert "--encoding" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["ascii", "utf-16", "utf-8", "shift_jis"])
def test_bytes_of_another_encoding_are_refused(tmp_path: Path, encoding: str):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc\nd\xff\xfe\xfdf\n1")
    with reading_as(encoding), pytest.raises(InputError) as caught:
        list(open_text(path))
    assert re.search(r"a\.txt, line \d.*: not .*; (name|save) .*encoding", str(caught.value))


@pytest.mark.parametrize("name", ["klingon", "base64", "rot13", "", "undefined", "utf-8\0"])
def test_what_is_no_encoding_is_refused_in_one_line(tmp_path: Path, name: str):
    with pytest.raises(InputError, match="is not known; use one such as utf-8, cp1252"):
        ownbert.prepare("a.txt", tmp_path / "b", tokenizer="c", encoding=name)
    if "\0" not in name:
        message = refusal("vocab", "a.txt", "-o", tmp_path / "v", "--encoding", name)
        assert f"encoding {name!r} is not known" in message


FUNCTIONS = ("predict", "evaluate", "embed", "learn_vocabulary", "prepare")


def test_functions_have_the_keyword():
    for name in FUNCTIONS:
        assert "encoding" in inspect.signature(getattr(ownbert, name)).parameters


@pytest.fixture(scope="module")
def wide(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of ``topics`` in UTF-16, of which nothing can be read as UTF-8."""
    folder = tmp_path_factory.mktemp("wide")
    for name in ("corpus.txt", "train.csv", "dev.csv", "test.csv"):
        (folder / name).write_bytes((topics / name).read_text().encode("utf-16"))
    return folder


def test_commands_that_use_a_model(
    classifier: Path, pretrained: Path, topics: Path, wide: Path, tmp_path: Path
):
    for command, folder, more in (
        ("predict", classifier, ()),
        ("errors", classifier, ("--json", "--train")),
        ("explain", classifier, ("--json", "--rows", "3")),
    ):
        shown = []
        for files, option in ((topics, ()), (wide, ("--encoding", "UTF-16"))):
            train = [files / "train.csv"] if command == "errors" else []
            done = run_cli(command, folder, files / "test.csv", *more, *train, *option)
            assert (done.returncode, done.stderr) == (0, "")
            shown.append(done.stdout)
        assert shown[0] == shown[1]
    lines = (topics / "corpus.txt").read_text()
    done = run_cli("predict", classifier, "--encoding", "utf-16", stdin=lines.encode("utf-16"))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == printed_rows("predict", classifier, stdin=lines)

    plain = ownbert.evaluate(classifier, topics / "test.csv")
    found = ownbert.evaluate(classifier, wide / "test.csv", encoding="utf-16")
    assert found.values == plain.values
    vectors = ownbert.embed(pretrained, topics / "corpus.txt")
    assert np.array_equal(
        ownbert.embed(pretrained, wide / "corpus.txt", encoding="utf-16"), vectors
    )
    output = tmp_path / "p.csv"
    ownbert.predict(classifier, wide / "test.csv", output, encoding="utf-16")
    assert len(list(csv.DictReader(output.open()))) == 45
    for command, folder in (("predict", classifier), ("embed", pretrained)):
        given = (folder, wide / "test.csv", "-o", tmp_path / "o", "--encoding", "utf-16")
        assert "--runner ray reads only UTF-8" in refusal(command, *given, "--runner", "ray")


def test_commands_that_train(topics: Path, wide: Path, pretrained: Path, tmp_path: Path):
    option = ("--encoding", "utf-16")
    for files, own, folder in ((topics, (), "utf8"), (wide, option, "utf16")):
        for command in (
            ("vocab", files / "corpus.txt", "--kind", "blank", "-o", folder),
            ("vocab", files / "corpus.txt", "-o", f"{folder}-pieces"),
            ("prepare", files / "corpus.txt", "-t", folder, "-o", f"{folder}-tokens"),
            ("probe", pretrained, "--train", files / "train.csv", "-o", f"{folder}-probe"),
        ):
            done = run_cli(*command, *own, "--quiet", cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
        train = ("--train", files / "train.csv", "--dev", files / "dev.csv", "--model", pretrained)
        done = run_cli(
            *("finetune", "classify", *train, "-o", f"{folder}-clf", "--max-steps", 2),
            *(*own, "--pretrain-steps", 2, "--quiet"),
            cwd=tmp_path,
        )
        assert (done.returncode, done.stderr) == (0, "")
    for name in ("{}/vocab.txt", "{}-pieces/vocab.txt", "{}-clf/model.safetensors"):
        one, other = (tmp_path / name.format(folder) for folder in ("utf8", "utf16"))
        assert one.read_bytes() == other.read_bytes()
    stores = [Store.open(tmp_path / f"{folder}-tokens") for folder in ("utf8", "utf16")]
    assert np.array_equal(stores[0].tokens, stores[1].tokens)
    given = {"train": wide / "train.csv", "dev": wide / "dev.csv", "max_steps": 1, "quiet": True}
    ownbert.finetune(model=pretrained, output=tmp_path / "python", encoding="utf-16", **given)
    # A recipe knows the encoding, so that it is the whole run.
    recipe = ("--config", tmp_path / "utf16-clf" / "recipe.yaml", "--dry-run")
    done = run_cli("finetune", "classify", *recipe)
    assert (done.returncode, done.stderr) == (0, "")
    assert "encoding: utf-16" in done.stdout
    # Another encoding is another corpus.
    again = ("prepare", wide / "corpus.txt", "-t", "utf8", "-o", "utf16-tokens")
    done = run_cli(*again, "--encoding", "utf-16-le", cwd=tmp_path)
    assert (done.returncode, "unchanged" in done.stdout) == (0, False)


def test_fit_reads_its_files_so_and_its_own_as_utf8(topics: Path, wide: Path, tmp_path: Path):
    done = run_cli(
        *("fit", wide / "train.csv", "--dev", wide / "dev.csv", "--encoding", "utf-16"),
        *("--unlabelled", wide / "corpus.txt", "--minutes", "0.2", "-o", "best", "--quiet"),
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "best" / "report.html").exists()
    # Texts in memory have no encoding, whatever the files have.
    vocabulary = tmp_path / "vocab"
    texts = [CHINESE] * 5
    ownbert.learn_vocabulary(texts, vocabulary, kind="wordpiece", encoding="utf-16")
    assert "海" in (vocabulary / "vocab.txt").read_text(encoding="utf-8")
