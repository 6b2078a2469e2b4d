"""The table of commands: each is a file of its name, loaded when it is asked for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import ownbert.cli
from ownbert.cli import COMMANDS, app

LIGHT = """
import sys
from importlib import import_module
import ownbert.cli
for name in ownbert.cli.COMMANDS:
    import_module(f"ownbert.cli.{name}")
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
    assert tuple(re.findall(r"^│ (\w+)  ", shown, re.MULTILINE)) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_each_is_a_file_of_its_name_with_an_example(name: str):
    assert Path(ownbert.cli.__file__).with_name(f"{name}.py").exists()
    group = typer.main.get_command(app)
    command = group.get_command(None, name)  # pyright: ignore
    for made in getattr(command, "commands", {"": command}).values():
        assert f"ownbert {name}" in made.help
        assert "Example: " in made.help


def test_no_command_loads_what_is_heavy_before_it_runs():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_the_file_of_a_command_is_loaded():
    code = "import sys, ownbert.cli as c; c.main()\n"
    check = "import atexit; atexit.register(lambda: print('ownbert.cli.trace' in sys.modules))"
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
