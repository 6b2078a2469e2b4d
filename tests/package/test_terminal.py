"""What is printed: no character of a text or a name reaches the terminal as a command."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from rich.table import Table
from rich.text import Text
from tests.support.cli import run_cli
from tests.support.tiny import change_weights, made

from ownbert.run.model_card import cell, table
from ownbert.terminal import accept_any_encoding, console, echo, printable

HOSTILE = "a\x1b[31mb\x9b2J\rc\x07\u202ed\ud800"
SHOWN = "a\\u001b[31mb\\u009b2J\\u000dc\\u0007\\u202ed\\ud800"


def test_what_a_terminal_obeys_is_escaped():
    assert printable(HOSTILE) == SHOWN
    assert printable("été\t我们\nשלום 👩\u200d👧") == "été\t我们\nשלום 👩\u200d👧"
    text = json.dumps({"x": "\x7f\x9b\u202e"}, ensure_ascii=False)
    assert json.loads(printable(text)) == {"x": "\x7f\x9b\u202e"}


def test_a_console_escapes_texts_and_keeps_its_own_colours():
    file = io.StringIO()
    output = console(file=file, force_terminal=True, color_system="standard", width=200)
    output.print(Text(HOSTILE.replace("\x07", "").replace("\r", ""), style="red"))
    grid = Table.grid()
    grid.add_row(Text("x\x1b]0;title"))
    output.print(grid)
    written = file.getvalue()
    assert "\\u001b[31mb" in written
    assert "\x1b[31m" in written  # its own red
    assert "x\\u001b]0;title" in written
    assert "\x9b" not in written
    assert "\x1b]" not in written


def test_any_encoding_of_the_terminal_will_do(monkeypatch: pytest.MonkeyPatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    accept_any_encoding()
    echo(json.dumps({"é": "我😀"}, ensure_ascii=False))
    sys.stdout.flush()
    assert json.loads(raw.getvalue().decode("ascii")) == {"é": "我😀"}


def test_commands_escape_arguments_texts_and_names(tmp_path: Path):
    folder = tmp_path / "model"
    made(folder, "mlm")
    filled = run_cli("fill", folder, "a \x1b[31m [MASK]")
    assert (filled.returncode, "\\u001b[31m" in filled.stdout) == (0, True)
    assert "\x1b" not in filled.stdout
    change_weights(folder, **{"x\x1b[31m": torch.zeros(2)})
    refused = run_cli("fill", folder, "a [MASK]")
    assert refused.returncode == 2
    assert "unexpected tensor x\\u001b[31m" in refused.stderr
    missing = run_cli("runs", tmp_path / "caf\x1b[2J")
    assert missing.stderr == f"error: no such folder: {tmp_path}/caf\\u001b[2J\n"
    undecodable = run_cli("runs", "caf\udce9")
    assert undecodable.returncode == 2
    assert undecodable.stderr.startswith("error: argument 2 is not UTF-8: caf\\udce9; ")


def test_labels_are_text_in_a_card():
    assert cell("<img src=x onerror=alert(1)>") == "&lt;img src=x onerror=alert(1)&gt;"
    assert cell("[a](http://b) `c` *d* _e_ a|b") == (r"\[a\](http://b) \`c\` \*d\* \_e\_ a\|b")
    assert cell("data.labels_per_class") == "data.labels_per_class"
    assert cell("&lt; R&D a\x1bb") == r"&amp;lt; R&D a\\u001bb"
    assert table(["a"], [["x\n|y"]]).splitlines()[-1] == r"| x \|y |"
