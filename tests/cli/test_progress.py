"""Progress on a terminal: a count, its rate, the time left, and messages above it."""

import io
import re
import sys
import time

import pytest

from ownbert.cli.options import Quiet
from ownbert.terminal import echo


def shown(monkeypatch: pytest.MonkeyPatch, total: int | None) -> list[str]:
    """The lines that a terminal got, without what moves its cursor."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Quiet().counting("rows predicted", lambda: total) as progress:
        for count in (1000, 2048):
            time.sleep(0.06)
            progress(count)
        echo("warning: 3 rows are long", err=True)
        time.sleep(0.15)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", sys.stderr.getvalue())  # type: ignore[attr-defined]
    return [line.rstrip() for line in re.split(r"[\r\n]", text) if line.strip()]


@pytest.mark.parametrize("total", [None, 4096])
def test_a_warning_is_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch, total: int | None):
    lines = shown(monkeypatch, total)
    assert "warning: 3 rows are long" in lines
    last = lines[-1]
    assert ("2,048 rows predicted" if total is None else "2,048 of 4,096 rows predicted") in last
    assert re.search(r"[\d,]+/s", last)
    assert bool(re.search(r"\d:\d\d:\d\d$", last)) == (total is not None)


def test_without_a_terminal_nothing_is_counted(capsys: pytest.CaptureFixture[str]):
    def never() -> int:
        raise AssertionError

    with Quiet().counting("rows", never) as progress:
        progress(1)
    assert capsys.readouterr() == ("", "")
