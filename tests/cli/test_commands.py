"""Commands: each is a class of its name, whose module is loaded when it is run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ownbert.cli import COMMANDS, app
from support.cli import every_command, refusal, run_cli

LIGHT = """
import sys
from importlib import import_module
import ownbert.cli
for module, _ in ownbert.cli.COMMANDS.values():
    import_module(f"ownbert.cli.{module}")
heavy = {"torch", "numpy", "scipy", "pyarrow", "tokenizers", "matplotlib"} & set(sys.modules)
sys.exit("imports " + ", ".join(heavy) if heavy else 0)
"""

ENDS = """
import atexit, gc, sys
import ownbert.cli
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # is called last
sys.argv = ["ownbert", "--version"]
ownbert.cli.main()
"""


def test_help_lists_the_commands_in_order():
    shown = CliRunner().invoke(app, ["--help"]).output.split("─ Options ─")[1]
    assert tuple(re.findall(r"^│ (\w+)  ", shown, re.MULTILINE)) == tuple(COMMANDS)


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_each_has_an_example(path: tuple[str, ...]):
    help = every_command()[path].help
    assert f"ownbert {path[0]}" in help
    assert "Example: " in help


def test_no_command_loads_what_is_heavy_before_it_runs():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_the_module_of_a_command_is_loaded():
    code = "import sys, ownbert.cli as c; c.main()\n"
    loaded = "'ownbert.cli.inspect_commands' in sys.modules"
    check = f"import atexit; atexit.register(lambda: print({loaded}))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {check}; {code}", "fill", "--help"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "False")


def test_a_wrong_name_is_told_the_right_one():
    done = CliRunner().invoke(app, ["pretrian"])
    assert done.exit_code == 2
    assert "Did you mean 'pretrain'?" in done.output


def test_the_end_looks_through_nothing():
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True)
    assert done.stdout.endswith("True\n")
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["evaluate", "errors", "heads", "explain", "faithfulness"])
def test_the_columns_that_are_asked_for_can_be_named(
    command: str, classifier: Path, topics: Path, tmp_path: Path
):
    """The message about columns names options, and the command has them; so it has --encoding."""
    lines = (topics / "test.csv").read_text().splitlines()[1:10]
    rows = (line.split(",") for line in lines)
    table = "".join(f"{text},{label},é {text}\n" for label, text in rows)
    (tmp_path / "rows.csv").write_text(f"pré,kind,note\n{table}", encoding="latin-1")
    given = (command, classifier, tmp_path / "rows.csv")
    encoded = ("--encoding", "latin-1")
    assert "--text-column" in refusal(*given, *encoded)
    named = ["--text-column", "pré"]
    if command in ("evaluate", "errors", "heads"):
        named += ["--label-column", "kind"]
    done = run_cli(*given, *encoded, *named)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
