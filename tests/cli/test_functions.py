"""Commands and the Python functions of their names have the same settings and defaults."""

import inspect
from importlib import import_module

import pytest

import ownbert
from ownbert.cli import COMMANDS
from ownbert.cli.command import Command, fields_of
from ownbert.settings import Setting

# Functions that are called otherwise than their commands.
FUNCTIONS = {"vocab": "learn_vocabulary", "label": "to_label", "build": "build_index"}
# Parameters that a command has by another name, or that are not for a command line.
OTHERS = {
    *("data", "input", "inputs", "paths", "rows", "texts", "labels", "model", "tokenizer"),
    *("progress", "say", "options"),
}
# Defaults that differ: None, or standard output, stands for them on the command line.
DEFAULTS = {"top_k", "output", "methods"}


def kind_of(name: str) -> type[Command]:
    module, _ = COMMANDS.get(name, ("collection_commands", ""))
    return getattr(import_module(f"ownbert.cli.{module}"), f"{name.capitalize()}Command")


@pytest.mark.parametrize(
    "name",
    [
        *("vocab", "prepare", "probe", "predict", "evaluate", "embed", "score", "fill", "merge"),
        *("build", "topics", "duplicates", "label", "export", "quantize", "push", "describe"),
        *("compare", "drift", "audit", "faithfulness"),
    ],
)
def test_a_command_has_the_settings_of_its_function(name: str):
    function = getattr(ownbert, FUNCTIONS.get(name, name))
    parameters = inspect.signature(function).parameters
    settings = {n: s for n, s in fields_of(kind_of(name)).items() if isinstance(s, Setting)}
    missing = parameters.keys() - settings.keys() - OTHERS
    assert not missing
    for setting_name in (parameters.keys() & settings.keys()) - OTHERS - DEFAULTS:
        own, default = settings[setting_name].default, parameters[setting_name].default
        required = own is ... and default in (inspect.Parameter.empty, None)
        assert required or own == default, (setting_name, own, default)
