"""Messages keep users' data in every language, on the command line and in Python."""

import pickle
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ownbert
from ownbert.exceptions import InputError, MissingError, warn_of_input
from ownbert.language.catalogue import CHINESE, ENGLISH
from ownbert.language.messages import Message, Option, on_command_line, typed_options

# What options, templates and translations consist of, in labels, paths and column names.
PIECES = ("--", "--bad-label", "-o", "--resume", "'", '"', "{", "}", "{name}", "{{", "%s", "\n")
PIECES += ("a", " ", "；", "标签", ": ", "error: ", "no such folder: ", "runs/--old", "ownbert fit")
DATA = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=6).map("".join)


@given(DATA, DATA)
def test_users_data_stay_as_they_are(file: str, label: str):
    nested = Message("no such folder: {folder}", file)
    template = "{file}: {nested}; {label!r}, 100% {{a}}: choose with {--text-column}"
    error = InputError(template, file, nested, label)
    for language in (ENGLISH, CHINESE):
        for terminal, option in ((True, "--text-column"), (False, "text_column")):
            shown = error.message.shown(language, on_command_line=terminal)
            inner = "目录不存在：" if language == CHINESE else "no such folder: "
            assert shown == f"{file}: {inner}{file}; {label!r}, 100% {{a}}: choose with {option}"
    assert str(error) == error.message.shown(ENGLISH)


@given(DATA)
def test_errors_and_their_templates_survive_other_processes(path: str):
    error = InputError("{inner}", MissingError("no such folder: {folder}", path))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (InputError, f"no such folder: {path}")
    assert copy.message.shown(CHINESE) == f"目录不存在：{path}"


def test_options():
    share = Option("dev_share", 0.1)
    message = Message("give {--task classify}, {share} or {-o}; {--resume}", share)
    assert message == "give task='classify', dev_share=0.1 or output; resume=True"
    with on_command_line():
        assert message.shown() == "give --task classify, --dev-share 0.1 or -o; --resume"
        typed_options["--resume"] = "--continue"
        try:
            assert message.shown().endswith("; --continue")
        finally:
            typed_options.clear()
        labels = Option("--label-column", "a b", "c")
        assert str(labels) == "--label-column 'a b' or c"
    assert str(labels) == "label_column='a b' or 'c'"


def test_lists_of_messages():
    both = Message("{problems}", [Message("no such folder: {folder}", "a"), "b"])
    assert both == "no such folder: a, b"
    assert both.shown(CHINESE) == "目录不存在：a, b"


def test_a_warning_is_a_message():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_input("no such folder: {folder}", Path("--resume {x}"))
    (warning,) = caught
    assert str(warning.message) == "no such folder: --resume {x}"


def test_a_template_without_its_values_is_an_error():
    for values in ([], ["a", "b"]):
        with pytest.raises(ValueError, match="zip"):
            Message("no such folder: {folder}", *values)


def test_shapes_are_written_and_words_listed():
    assert Message("{shape} is not {names}", (2,), ["a", "b"]) == "(2,) is not a, b"


def test_finished_sentences_keep_quoted_data_and_paths(tmp_path: Path):
    file = tmp_path / "--old.csv"
    file.write_text("text,label\na,x\nb,y\n")
    with pytest.raises(InputError) as caught:
        ownbert.fit(file, label_column="--bad-label", output=tmp_path / "out")
    assert str(file) in str(caught.value)
    assert "'--bad-label'" in str(caught.value)
    assert "label_column" in str(caught.value)
