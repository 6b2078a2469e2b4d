"""Reading with one clear error; writing whole or not at all."""

import gzip
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownbert.exceptions import InputError
from ownbert.files.input_files import protected, refuse_same, refuse_second_reading
from ownbert.files.json_files import read_json, write_json
from ownbert.files.resumable_file import ResumableFile
from ownbert.files.text_files import READ_BUFFER, open_text
from ownbert.files.writing import atomic_path, write_text
from ownbert.tables.tables import columns


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_text_makes_folders_and_replaces(tmp_path: Path):
    target = tmp_path / "a" / "b" / "note.txt"
    write_text(target, "first")
    write_text(target, "第二\n")
    assert target.read_bytes() == "第二\n".encode()
    assert names(target.parent) == ["note.txt"]


def test_a_pipe_is_not_waited_for_twice(tmp_path: Path):
    """Whoever writes to it does so once, and a command that reads its input twice would hang."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with protected([pipe]):
        writer = threading.Thread(target=pipe.write_text, args=["a\nb\n"])
        writer.start()
        assert [line for _, line in open_text(pipe)] == ["a", "b"]
        writer.join()
        with pytest.raises(InputError, match="is a pipe, which can be read only once"):
            next(open_text(pipe))
    with protected([pipe]):  # a function that a command calls protects its inputs, too
        for reads in range(2):
            with protected([pipe]):
                if not reads:
                    refuse_second_reading(pipe)
                    continue
                with pytest.raises(InputError, match="can be read only once"):
                    refuse_second_reading(pipe)


def test_a_device_is_not_replaced(tmp_path: Path):
    (tmp_path / "null").symlink_to(os.devnull)
    with pytest.raises(InputError, match="it is a device or a pipe"):
        write_text(tmp_path / "null", "x")
    assert (tmp_path / "null").is_symlink()


def test_a_line_has_a_largest_length(tmp_path: Path):
    """A gzip file of a few kilobytes can be one line of gigabytes."""
    path = tmp_path / "bomb.txt"
    path.write_bytes(gzip.compress(b"short\n" + b"w" * (1 << 26) + b"\n", compresslevel=1))
    lines = open_text(path)
    assert next(lines) == (1, "short")
    with pytest.raises(InputError, match=r"bomb.txt, line 2 is longer than 64 MB"):
        next(lines)


def test_write_json_round_trip(tmp_path: Path):
    write_json(tmp_path / "x.json", {"名": [1, 2.5, None]})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"名": [1, 2.5, None]}


DEEP, LONG = "[" * 100_000 + "]" * 100_000, "1" * 5000
BAD_JSON = [
    (b"{", r"is not valid JSON: .*line 1 column 2"),
    (b"", r"is not valid JSON: Expecting value"),
    (b"[]", "must contain a JSON object"),
    (f'{{"a": {DEEP}}}'.encode(), "is not valid JSON: it is nested too deeply"),
    (f'{{"a": {LONG}}}'.encode(), "is not valid JSON: a whole number has too many digits"),
    (b'{"a":\n"\xe9"}', "line 2: not UTF-8"),
    ("{}".encode("utf-16"), "is UTF-16"),
]


@pytest.mark.parametrize(("content", "message"), BAD_JSON, ids=range(len(BAD_JSON)))
def test_json_that_cannot_be_used_is_one_line(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "values.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"values\.json.*{message}") as caught:
        read_json(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=rf"values\.json.*{message}"):
        read_json(path, missing={})


def test_kinds_of_json_and_files_that_are_missing(tmp_path: Path):
    path = tmp_path / "values.json"
    with pytest.raises(InputError, match=r"no such file: .*values\.json"):
        read_json(path)
    assert read_json(path, missing={}) == {}
    path.write_bytes(b"\xef\xbb\xbf[1, NaN]")
    assert read_json(path, list)[0] == read_json(path, object)[0] == 1
    with pytest.raises(InputError, match="must contain a JSON object"):
        read_json(path)
    path.write_text("{}")
    with pytest.raises(InputError, match="must contain a JSON list"):
        read_json(path, list)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError, InputError, SystemExit])
def test_nothing_is_left_after_an_interrupt(tmp_path: Path, failure: type[BaseException]):
    target = tmp_path / "note.txt"
    target.write_text("old")

    def write_and_fail():
        with atomic_path(target) as temporary:
            assert temporary.parent == target.parent
            temporary.write_text("half")
            raise failure

    with pytest.raises(failure):
        write_and_fail()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["note.txt"]


def test_written_files_have_ordinary_permissions(tmp_path: Path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_write_refuses_folder_and_file_in_the_way(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="it is a folder"):
        write_text(tmp_path / "folder", "x")
    with pytest.raises(InputError, match="cannot make the folder"):
        write_text(tmp_path / "file" / "x.txt", "x")


FULL_DISK = """
import resource, signal, sys
from ownbert.exceptions import InputError
from ownbert.files.writing import write_text
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_text(sys.argv[1], "x" * 100_000)
except InputError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path):
    target = tmp_path / "note.txt"
    target.write_text("old")
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(target)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2, result.stderr
    assert result.stdout.startswith(f"cannot write {target}: ")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["note.txt"]


def test_lines_end_at_newlines_only(tmp_path: Path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffa\u2028b\x0bc\x0cd\x85e\r\n\r\nlast \rone".encode())
    assert list(open_text(path)) == [(1, "a\u2028b\x0bc\x0cd\x85e"), (2, ""), (3, "last \rone")]
    # A line end of two characters is one where blocks of returns alone meet, too.
    path.write_bytes(b"a\r" + b"b" * (READ_BUFFER - 3) + b"\r\nc\r\r\nd")
    assert [(n, line[:2]) for n, line in open_text(path)] == [
        *enumerate(["a", "bb", "c", "", "d"], 1)
    ]


def test_a_setting_that_only_the_stopped_run_has_differs(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    stopped = ResumableFile(path, {"format": 1, "encoding": "cp1252"}, resume=False)
    stopped.write(["1\n"])
    stopped.close()
    with pytest.raises(InputError, match="the stopped run differs in its encoding"):
        ResumableFile(path, {"format": 1}, resume=True)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))))
def test_any_text_comes_back_plain_and_gzip(tmp_path_factory: pytest.TempPathFactory, lines):
    lines = [line.removeprefix("\ufeff") for line in lines]
    path = tmp_path_factory.mktemp("lines") / "text"
    data = "".join(f"{line}\n" for line in lines).encode()
    for content in (data, gzip.compress(data, compresslevel=1)):
        path.write_bytes(content)
        assert [line for _, line in open_text(path)] == lines


def test_gzip_is_known_by_content_and_long_lines_pass(tmp_path: Path):
    path = tmp_path / "no-ending"
    path.write_bytes(gzip.compress(b"x" * 5_000_000 + b"\nend") + gzip.compress(b"ing\n"))
    assert [len(line) for _, line in open_text(path)] == [5_000_000, 6]


def test_reading_errors_are_one_line(tmp_path: Path):
    good = gzip.compress(b"one\ntwo\n" * 50_000)
    cases = {
        "latin": (b"one\ncaf\xe9\n", "line 2: not UTF-8"),
        "wide": ("text".encode("utf-16"), "is UTF-16"),
        "cut.gz": (good[:-20], "damaged or cut short"),
        "bad.gz": (good[:100] + b"\0" * 50 + good[150:], "damaged or cut short"),
        "junk.gz": (b"\x1f\x8bjunk", "damaged or cut short"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            list(open_text(tmp_path / name))
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)


def test_missing_and_unreadable_are_told_at_the_call(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        open_text(tmp_path / "absent.txt")
    with pytest.raises(InputError, match="is a folder"):
        open_text(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0)
    if not os.access(secret, os.R_OK):
        with pytest.raises(InputError, match="cannot read"):
            open_text(secret)


def test_modules_of_the_command_line_import_nothing_heavy():
    modules = (
        "ownbert.files.text_files, ownbert.corpus.documents, ownbert.corpus.learn_vocabulary, "
        "ownbert.text.text_parts"
    )
    code = (
        f"import sys, {modules}; "
        "print(sorted({'torch', 'tokenizers', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_an_output_that_is_an_input(tmp_path: Path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("1")
    two.symlink_to(one)
    for sources in (one, str(one), [tmp_path / "none", one], (tmp_path, two)):
        with pytest.raises(InputError, match=r"one\.txt is read by this command"):
            refuse_same(sources, one)
    for sources in (tmp_path, [two.with_name("none")], [], iter(["1"]), [1.0]):
        refuse_same(sources, one)
    refuse_same(one, None)
    refuse_same(one, tmp_path / "new.txt")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
        (b"PK\x03\x04\x14\0\0\0\x08\0\xb9\xff", "a ZIP archive, or a document of Word"),
        (b"PK\x03\x04\nvalid UTF-8", "a ZIP archive, or a document of Word"),
        (b"PAR1\x15\x04\n\xff\xfe", "a Parquet file; its name must end with .parquet"),
        (b"ARROW1\0\0\xff\xff", "a Feather or Arrow file; save it as parquet or csv"),
        (pickle.dumps({"text": ["a"]}), "a Python pickle; save its content as parquet or csv"),
        (b"$FL2@(#) SPSS DATA FILE\x02\0\0", "an SPSS file; save its content as parquet or csv"),
        (b"%PDF-1.7\n%\xb5\xb5", "a PDF document; save its text"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_another_kind_is_called_by_its_name(
    tmp_path: Path, content: bytes, kind: str, packed: bool
):
    path = tmp_path / "corpus.txt"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError, match=rf"corpus\.txt is not text but {kind}"):
        list(open_text(path))
    path = path.rename(tmp_path / "corpus.xlsx")
    with pytest.raises(InputError, match=rf"corpus\.xlsx is not text but {kind}"):
        columns(path)


def test_folders_that_were_made_for_a_file_that_failed_are_removed(tmp_path: Path):
    (tmp_path / "there").mkdir()
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "there" / "a" / "b" / "x"):
        (tmp_path / "none").read_text()
    assert [p.name for p in tmp_path.rglob("*")] == ["there"]
