"""The folder a run writes to: whether it may, and by which recipe it goes on."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.weights import WEIGHTS
from ownbert.errors import InputError
from ownbert.settings import resolve, settings_of
from ownbert.text.files import has_tokenizer
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.log import CURVES, LOG
from ownbert.train.state_files import FOLDER, Damaged, newest, read_state, refuse_other

RECIPE = "recipe.yaml"
# Which folders an ensemble is made of.
ENSEMBLE = "ensemble.json"
T = TypeVar("T")


def resolve_run(
    kind: type[T],
    output: Path,
    *,
    config: str | Path | None,
    overrides: Sequence[str],
    begun: bool,
    options: Mapping[str, Any],
) -> T:
    """The recipe of a run. One that is ``begun`` and resumed starts from the recipe in ``output``.

    Raises ``InputError`` when it is then asked for another corpus, model or seed.
    """
    there = output / RECIPE
    if not (begun and there.exists()):
        return resolve(kind, config=config, overrides=overrides, options=options)
    before = resolve(kind, config=there)
    now = resolve(kind, config=config, overrides=overrides, options=options, base=before)
    free = {name for name, about in settings_of(kind).items() if about.resumable}
    for name, old, new in _differences(asdict(before), asdict(now), free):  # type: ignore[call-overload]
        raise InputError(
            f"cannot resume {output}: {name} was {old!r} and is now {new!r}; leave it as it was, "
            "or start anew with --overwrite"
        )
    return now


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], free: Set[str], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Settings that differ, with both values, but for those of ``free``."""
    for name, value in old.items():
        if prefix + name in free:
            continue
        if isinstance(value, Mapping):
            yield from _differences(value, new[name], free, f"{prefix}{name}.")
        elif value != new[name] and new[name] not in (None, "auto"):  # then it stays as it was
            yield prefix + name, value, new[name]


def refuse_taken(output: Path, *, resume: bool, overwrite: bool) -> None:
    """``InputError`` if ``output`` is no folder, or holds a model that nobody said may change."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; -o must name a folder")
    trained = (output / WEIGHTS).exists() or newest(output) is not None
    if trained and not (resume or overwrite):
        raise InputError(
            f"{output} already holds a model; go on with --resume, start anew with --overwrite, "
            "or choose another folder"
        )


def claim_output(
    output: Path,
    *,
    resume: bool,
    overwrite: bool,
    identity: Mapping[str, str],
    vocabulary: Tokenizer | None = None,
) -> None:
    """Make ``output`` ready to be written to.

    A model or saved states there are kept unless ``resume`` or ``overwrite`` is given; a
    tokenizer there must be ``vocabulary``, and states to go on from must be of a run that learnt
    from the same (``identity``). Raises ``InputError``.
    """
    refuse_taken(output, resume=resume, overwrite=overwrite)
    if resume and (path := newest(output)) is not None:
        with contextlib.suppress(Damaged):  # the loop names it, where an older one is not asked for
            refuse_other(path, read_state(path)["identity"], identity)
    if vocabulary is not None and has_tokenizer(output) and not overwrite:
        there = Tokenizer.load(output)
        if there.fingerprint() != vocabulary.fingerprint():
            raise InputError(
                f"{output} has another vocabulary than the token store; prepare the store again "
                f"with --tokenizer {output}, or choose another folder"
            )
    if overwrite and not resume:
        for name in (WEIGHTS, CONFIG, LOG, CURVES, RECIPE):
            (output / name).unlink(missing_ok=True)
        shutil.rmtree(output / FOLDER, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
