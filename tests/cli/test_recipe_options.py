"""Options generated from the settings of a recipe: each shows the default of the recipe."""

from functools import reduce
from typing import Any

import pytest
from typer.testing import CliRunner

from ownbert import InputError
from ownbert.checks import between, each, one_of, positive, up_to
from ownbert.cli import app
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.settings import settings_of
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.translation.translation_recipe import TranslateRecipe
from support.cli import every_command

EVERY = every_command()
TASKS = [path for path in EVERY if path[0] == "finetune"]
COMMANDS: dict[str, tuple[Any, type]] = {
    "pretrain": (EVERY["pretrain",], PretrainRecipe),
    **{path[1]: (EVERY[path], FinetuneRecipe) for path in TASKS},
    "translate train": (EVERY["translate", "train"], TranslateRecipe),
}
# Options that are not settings.
OTHERS = {
    *("--output", "--config", "--dry-run", "--quiet", "--resume", "--resume-step"),
    *("--overwrite", "--help", "--help-all"),
}


def settings_by_flag(recipe: type) -> dict[str, str]:
    """The dotted name of the setting of each option; the first one if two have the same flag."""
    found: dict[str, str] = {}
    for name, about in settings_of(recipe).items():
        flag = about.option or "--" + name.rpartition(".")[2].replace("_", "-")
        found.setdefault(flag.partition("/")[0], name)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_shows_the_default_of_the_recipe(command: str):
    made, recipe = COMMANDS[command]
    names = settings_by_flag(recipe)
    settings = 0
    for option in made.params:
        flag = option.opts[0]
        if not flag.startswith("--") or (flag not in names and flag in OTHERS):
            continue
        default = reduce(getattr, names[flag].split("."), recipe())
        shown = option.show_default
        settings += 1
        if default is None or default == "":
            assert option.default is None, flag  # it depends on the data
        elif isinstance(default, bool):
            off = [name.lstrip("-") for name in option.secondary_opts]
            assert shown == ((flag.lstrip("-") if default else off[0]) if off else False), flag
            assert off or default is False, flag  # otherwise nobody could turn it off
        elif isinstance(default, int | float):
            assert float(shown.partition(":")[0]) == default, flag
        elif isinstance(default, tuple):
            assert tuple(shown.split(",")) == default, flag
        else:
            assert shown == default, flag
    assert settings >= 20


def test_changes_for_single_commands_name_existing_ones():
    for _, recipe in COMMANDS.values():
        for name, about in settings_of(recipe).items():
            assert set(about.commands) <= set(COMMANDS), name


def test_every_setting_says_what_it_is():
    elsewhere = {"phases", "task.name", "data.text_column", "data.second_column"}
    for _, recipe in COMMANDS.values():
        silent = {name for name, about in settings_of(recipe).items() if not about.help}
        assert silent <= elsewhere | {"data.label_column", "data.feature_columns"}


def test_help_shows_defaults_in_their_panels():
    done = CliRunner().invoke(app, ["pretrain", "--help"], env={"COLUMNS": "100"})
    data = done.output.split("─ Data ─")[1].split("─ Learning ─")[0]
    assert "[default: (2048)]" in data
    assert "[default: (mlm,bow)]" in data
    assert "[default: (depends on the size)]" in done.output.split("─ Learning ─")[1]


@pytest.mark.parametrize(
    ("check", "good", "bad", "wanted"),
    [
        (positive, 1e-9, 0, "it must be more than 0"),
        (up_to(2), 2, 0, "it must be more than 0 and at most 2"),
        (up_to(2_000), 1, 2_001, "2001; it must be more than 0 and at most 2,000"),
        (up_to(2.0), 1, float("nan"), "it must be more than 0 and at most 2"),
        (between(0, 1), 0.5, 0, "it must be between 0 and 1"),
        (between(0, 1), 0.5, 1, "it must be between 0 and 1"),
        (between(0, 1, "[)"), 0, 1, r"it must be in \[0, 1\)"),
        (between(0, 1, "(]"), 1, 0, r"it must be in \(0, 1\]"),
        (between(0, 1, "[]"), 1, 1.1, r"it must be in \[0, 1\]"),
        (between(0, 1, "[]"), 0, float("nan"), r"it must be in \[0, 1\]"),
        (one_of("a", "b"), "b", "c", "a.setting is 'c'; it must be one of a, b"),
        (each(positive), (1, 2), (1, -2), "a.setting is -2; it must be more than 0"),
    ],
)
def test_values_that_a_setting_cannot_have(check, good, bad, wanted):
    check("a.setting", good)
    with pytest.raises(InputError, match=wanted):
        check("a.setting", bad)


def test_a_number_that_would_fill_the_screen_is_shown_in_short():
    with pytest.raises(InputError, match="is a number of about 5,000 digits; it must be"):
        up_to(2)("a.setting", 10**5000)
