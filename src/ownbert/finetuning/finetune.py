"""Fine-tuning as users ask for it: one training, several, or a search."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.checkpoint import describe
from ownbert.errors import InputError
from ownbert.finetuning.labelled_splits import Rows, drawn
from ownbert.finetuning.resume import claim, finished, resolve_begun
from ownbert.finetuning.run import Finetuning
from ownbert.nn.model import Model
from ownbert.tasks.task import task_class, task_of
from ownbert.train.display import Display
from ownbert.train.distributed import asked

if TYPE_CHECKING:
    from ownbert.finetuning.ensemble import Ensemble


def finetune(
    task: str | None = None,
    *,
    output: str | Path,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> "Model | Ensemble":
    """Fine-tune a model folder on labelled files and save the best weights in ``output``; with
    ``folds`` or ``seeds`` several models, of which an ``Ensemble`` is returned.

    task: one of ``ownbert.tasks.task.TASKS`` ("classify" by default). options: settings of
    ``FinetuneRecipe`` by name: ``model`` (the folder), ``train``, ``dev``, ``epochs``, ... For
    "image" ``train`` and ``dev`` may be arrays, (images, labels). Raises ``InputError`` for files,
    labels and settings that cannot be used; ``output`` is not touched then.
    """
    if asked():
        raise InputError("fine-tuning runs in one process; start it without torchrun")
    output = Path(output)
    rows, asked_for = in_memory(task, given(task, options))
    recipe = resolve_begun(
        output, config=config, overrides=overrides, resume=resume, options=asked_for
    )
    if resume and finished(output):
        Display("finetune", quiet=quiet).say(
            f"{output} is finished: nothing is left to do; start anew with --overwrite"
        )
        return task_of(describe(output), output).load(output)
    if rows is not None:
        rows = (drawn(rows[0], recipe), rows[1])
    run, how = Finetuning(recipe, rows), {"resume": resume, "quiet": quiet}
    if recipe.search.asked:
        from ownbert.finetuning.search import search

        return search(run, output, overwrite=overwrite, **how)
    if recipe.run.folds or recipe.run.seeds:
        from ownbert.finetuning.ensemble import train_ensemble

        return train_ensemble(run, output, overwrite=overwrite, **how)
    run.check_adapting()
    claim(output, resume=resume, overwrite=overwrite, identity=run.identity)
    run.adapt(output, **how)
    return run.train(output, **how)


def given(task: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a recipe names them."""
    named = {("model.folder" if k == "model" else k): v for k, v in options.items()}
    if named.pop("search", False):  # the flag of the command line
        named["search.usual"] = True
    if task is not None:
        named["task.name"] = task_class(task).name
    return {k: str(v) if isinstance(v, Path) else v for k, v in named.items()}


def in_memory(task: str | None, options: Mapping[str, Any]) -> tuple[Rows | None, dict[str, Any]]:
    """The rows of a task that takes arrays in the place of files, and the other options."""
    options = dict(options)
    if task is None or not task_class(task).in_memory:
        return None, options
    sources = {name: options.get(name) for name in ("train", "dev")}
    if all(source is None or isinstance(source, str) for source in sources.values()):
        return None, options
    reader = task_class(task)()
    train, dev = (None if s is None else reader.read(s) for s in sources.values())
    if train is None:
        raise InputError("train is needed: labelled rows to learn")
    return (train, dev), {k: v for k, v in options.items() if k not in sources}
