"""Numbers beyond every limit: each option and each setting refuses them before anything is read."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from ownbert import InputError
from ownbert.cli import usage_message
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.language.messages import on_command_line
from ownbert.pretraining.pretrain_recipe import PhaseRecipe, PretrainRecipe
from ownbert.serve.server_settings import ServeSettings
from ownbert.settings import resolve, settings_of
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.translation.translation_recipe import TranslateRecipe
from support.cli import every_command, run_cli

RECIPES = (PretrainRecipe, FinetuneRecipe, TranslateRecipe, FitRecipe, ServeSettings)
HUGE = ("1" + 36 * "0", "-1" + 36 * "0", "9" * 6000, "1e300", ".inf", "-.inf", ".nan")


def numbers_of(kind: type) -> list[str]:
    """The settings of a recipe that are numbers, or lists of them."""
    types = {name: about.type for name, about in settings_of(kind).items()}
    return [name for name, hint in types.items() if _is_number(hint)]


def _is_number(hint: Any) -> bool:
    return hint in (int, float) or any(map(_is_number, get_args(hint)))


@pytest.mark.parametrize("kind", RECIPES)
def test_every_number_of_a_recipe_has_limits(kind: type):
    names = numbers_of(kind)
    assert len(names) >= 4
    for name in names:
        for value in HUGE:
            with pytest.raises(InputError) as caught:
                resolve(kind, overrides=[f"{name}={value}"])
            said = str(caught.value)
            assert said.startswith(name), (name, value, said)
            assert len(said) < 200
            assert "\n" not in said


@pytest.mark.parametrize("name", vars(PhaseRecipe()))
def test_every_number_of_a_phase_has_limits(name: str):
    for value in HUGE:
        with pytest.raises(InputError):
            resolve(PretrainRecipe, overrides=[f"phases=[{{share: 1, {name}: {value}}}]"])


# The numbers of these commands are checked with their recipes, above.
RECIPE_OF = dict(zip(("pretrain", "finetune", "translate", "fit", "serve"), RECIPES, strict=True))


def flags_of(path: tuple[str, ...]) -> set[str]:
    """The options of a command that are numbers of a recipe."""
    if (kind := RECIPE_OF.get(path[0])) is None or path[1:] in (("use",), ("score",)):
        return set()
    about = settings_of(kind)
    names = {n: about[n].option or "--" + n.rpartition(".")[2] for n in numbers_of(kind)}
    return {flag.replace("_", "-") for flag in names.values()}


def parsed(path: tuple[str, ...], command: Any, *arguments: str) -> Exception | None:
    """The error for options of a command, whose required arguments are given; None if there is
    none."""
    needed: list[str] = []
    for parameter in command.params:
        if parameter.required:
            is_option = parameter.param_type_name == "option"
            needed += [parameter.opts[0], "a"] if is_option else ["a"]
    try:
        command.make_context(path[-1], [*needed, *arguments])
    except Exception as error:
        return error


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_number_on_the_command_line_has_limits(path: tuple[str, ...]):
    command, numbers = every_command()[path], set()
    for parameter in command.params:
        option = parameter.opts[0]
        if parameter.param_type_name != "option" or getattr(parameter, "is_flag", False):
            continue
        # Only numbers refuse text for not being a number.
        if (error := parsed(path, command, option, "x")) and "number" in usage_message(error):
            numbers.add(option)
    for option in numbers - flags_of(path):
        for value in ("1" + 36 * "0", "-1" + 36 * "0", "9" * 6000):
            error = parsed(path, command, f"{option}={value}")
            assert error is not None, (option, value)
            with on_command_line():
                said = usage_message(error)
            assert said.startswith(f"{option} is "), said
            assert "; it must be " in said
            assert len(said) < 200
    if path[0] in (*RECIPE_OF, "embed", "vocab", "prepare", "fill", "trace", "describe", "probe"):
        assert numbers


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("embed", "a", "b", "-o", "c", "--batch-tokens", "x"), "is 'x'; it must be a whole"),
        (("embed", "a", "b", "-o", "c", "--batch-tokens", "0"), "is '0'; it must be 1 or more"),
        (("translate", "a", "--beams", "1000000"), "is '1000000'; it must be at most 256"),
        (("translate", "a", "--length-penalty", "x"), "is 'x'; it must be a number"),
        (("pretrain", "a", "-o", "b", "--seed", 26 * "9"), "seed is 99999999999999999999999999;"),
        (
            ("vocab", "a", "-o", "b", "--vocab-size", "9" * 6000),
            "must be a number with fewer digits",
        ),
        (("embed",), "missing argument 'folder'; see .*embed --help"),
        (("vocab", "a"), "missing option '--output' / '-o'; see .*vocab --help"),
        (("embed", "a", "b", "--bogus"), "no such option: --bogus.*"),
        (("embed", "a", "b", "-o"), "option '-o' requires an argument.*"),
        (("bogus",), "no such command 'bogus'.*"),
        (("finetune", "classfy"), "no such command 'classfy'.* 'classify'.*"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: tuple[str, ...], said: str, tmp_path: Path):
    done = run_cli(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert re.match(rf"error: .*{said}.*\n\Z", done.stderr), done.stderr
    assert not list(tmp_path.iterdir())
