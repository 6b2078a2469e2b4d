"""Messages name options on the command line, and arguments in Python."""

from pathlib import Path

import pytest

import ownbert
from ownbert.exceptions import InputError
from ownbert.language.messages import on_command_line
from support.cli import refusal


@pytest.mark.parametrize(
    ("template", "in_python"),
    [
        (
            "go on with {--resume}; name it with {--text-column}",
            "go on with resume=True; name it with text_column",
        ),
        (
            "leave {--precision float32} out, and {-o} too",
            "leave precision='float32' out, and output too",
        ),
        (
            "first ownbert export F --to onnx -o G; then {--max-length 12}",
            "first ownbert export F --to onnx -o G; then max_length=12",
        ),
        ("a--b, e-mail and my-o stay", "a--b, e-mail and my-o stay"),
    ],
)
def test_options_are_arguments_in_python(template: str, in_python: str):
    error = InputError(template)
    assert str(error) == error.message.shown() == in_python
    with on_command_line():
        assert str(InputError(template)) == template.translate({ord("{"): "", ord("}"): ""})
    assert str(InputError(template)) == in_python


def test_the_same_mistake_in_both_ways(tmp_path: Path):
    (tmp_path / "a.csv").write_text("a,b\nx y z,1\nx y,2\n")
    named = ("--label-column", "c", "-o", tmp_path / "b")
    assert "choose with --label-column" in refusal("fit", tmp_path / "a.csv", *named)
    with pytest.raises(InputError, match="choose with label_column") as caught:
        ownbert.fit(tmp_path / "a.csv", label_column="c")
    assert "--" not in str(caught.value)
