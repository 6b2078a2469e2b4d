"""--help of every command: short, in groups, and the same words for the same thing."""

import re
from pathlib import Path

import pytest

from ownbert.cli import COMMANDS, _as_arguments
from support.cli import every_command, run_cli

# Of a command's --help on 80 columns.
MOST_LINES = 90


EVERY = {" ".join(path): command for path, command in every_command().items()}
# One word for one thing: what these options of all commands are called, by their parameters.
WORDS = {
    "output": "--output/-o",
    "quiet": "--quiet/-q",
    "device": "--device",
    "precision": "--precision",
    "resume": "--resume",
    "overwrite": "--overwrite",
    "seed": "--seed",
    "text_column": "--text-column",
    "label_column": "--label-column",
    "json": "--json",
    "top": "--top",
    "data": "--data/--input",
    "max_length": "--max-length",
}


@pytest.mark.parametrize("name", EVERY)
def test_options_are_explained_and_called_the_same(name: str):
    for option in EVERY[name].params:
        if option.param_type_name == "option":
            assert option.help, option.name
            if option.name in WORDS:
                assert "/".join(option.opts) == WORDS[option.name]
            # What is read stands after the name of the command.
            reads = {"--data", "--input", "--inputs", "--texts", "--file"} & {*option.opts}
            assert option.hidden or not reads or name == "trace"


@pytest.mark.parametrize("name", EVERY)
def test_paragraphs_are_broken_by_the_terminal_alone(name: str):
    for paragraph in EVERY[name].help.split("\n\n"):
        assert "\n" not in paragraph


@pytest.mark.parametrize("name", [n for n in EVERY if n != "translate use"])
def test_help_is_short(name: str):
    done = run_cli(*name.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) <= MOST_LINES
    assert not re.search(r"<=?\d*\s|<=x\s", done.stdout)  # a range is on one line


def test_a_second_name_of_a_task_is_not_listed():
    listed = run_cli("finetune", "--help").stdout
    assert re.findall(r"^│ (embed|rank) ", listed, re.MULTILINE) == ["embed"]
    assert "(alias: rank)" in " ".join(listed.split())
    assert "Example: ownbert finetune embed" in run_cli("finetune", "rank", "--help").stdout


@pytest.mark.parametrize("name", ["pretrain", "finetune classify", "translate train"])
def test_the_other_options_are_shown_too(name: str):
    brief, full = (run_cli(*name.split(), flag).stdout for flag in ("--help", "--help-all"))
    found = [{*re.findall(r"^│ (--[\w-]+)", text, re.MULTILINE)} for text in (brief, full)]
    assert {"--output", "--seed", "--learning-rate", "--help-all"} <= found[0] < found[1]
    hidden = {"--precision", "--log-every", "--dropout", "--accumulate"}
    assert hidden <= found[1] - found[0]
    # A hidden option is an option as any other.
    assert {o.opts[0] for o in EVERY[name].params if o.hidden} == found[1] - found[0]


def test_commands_stand_in_groups():
    shown = run_cli("--help").stdout
    places = [
        shown.index(f"─ {panel} ─") for panel in dict.fromkeys(p for _, p in COMMANDS.values())
    ]
    assert places == sorted(places)
    assert "--install-completion" in shown


def test_a_shell_completes_names():
    env = {"_OWNBERT_COMPLETE": "complete_bash", "COMP_WORDS": "ownbert pre", "COMP_CWORD": "1"}
    assert run_cli(env=env).stdout.split() == ["prepare", "pretrain", "predict"]


def test_values_of_options_become_arguments():
    given = ["--data", "a.txt", "model", "-o", "x", "--input=b.txt", "--", "--data"]
    found = _as_arguments(given, ("--data", "--input"))
    assert found == ["model", "-o", "x", "a.txt", "b.txt", "--", "--data"]
    assert _as_arguments(["m", "--data"], ("--data",)) == ["m"]


def test_other_spellings(pretrained: Path, topics: Path, tmp_path: Path):
    by_argument = run_cli("describe", pretrained, "red1 9")
    assert run_cli("describe", "--text", "red1 9", pretrained).stdout == by_argument.stdout
    done = run_cli("vocab", "--input", topics / "corpus.txt", "-o", tmp_path / "vocab", "-q")
    assert (done.returncode, done.stderr) == (0, "")
