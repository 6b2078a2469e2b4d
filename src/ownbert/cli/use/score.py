"""score: the surprisal of texts, and anomaly scores against normal texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.input_texts import given_texts
from ownbert.cli.progress import counting, say_saved, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.exceptions import InputError, counted
from ownbert.settings import setting
from ownbert.terminal import print_rows, say

_NOTHING = (
    'nothing to score; give files, texts, such as ownbert score FOLDER "a text", or lines on '
    "standard input"
)


@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """Options for scoring texts, named as in the Python function."""

    normal: list[Path] | None = setting(
        None,
        "Normal texts to compare with; their profile is saved in the folder (normal.npz) and "
        "used in later runs.",
        option="--normal --fit",
        shown="as fitted",
    )
    false_alarms: float | None = setting(
        None,
        "Share of normal texts that may be flagged.",
        shown="as fitted, else 0.01",
        check=between(0, 1),
    )
    tokens: bool = setting(False, "Include the surprisal of each token in the output.")
    passes: int | None = setting(
        None,
        "Passes per text; in each of n passes every n-th token is masked.",
        shown="6",
        check=between(1, limits.LENGTH, "[]"),
    )
    exact: bool = setting(False, "Mask one token in each pass.")
    html: Path | None = setting(
        None, "Write a page with the most unusual texts, 200 at most, with coloured tokens."
    )

    def given(self) -> dict[str, Any]:
        """The arguments of the Python function."""
        given = {name: value for name, value in vars(self).items() if name != "html"}
        return {**given, "normal": self.normal or None}


@settings_command
def score(
    folder: Annotated[Path, typer.Argument(help="Folder of a pretrained model.")],
    texts: o.TextsOrFiles = None,
    output: o.RowsFile = Path("-"),
    *,
    settings: ScoreSettings,
    columns: o.TextAndIds,
    encoding: o.Encoding = None,
    device: o.Device = "auto",
    engine: o.Engine = None,
    resume: o.ResumeFile = False,
    shard: o.ShardOption = None,
    quiet: o.Quiet = False,
) -> None:
    """Score how surprising texts and their tokens are to a pretrained model.

    Each token is masked once and predicted from the others. The surprisal of a text is the mean
    of -ln p over its tokens; its perplexity is the exponential of the surprisal.

    With --normal, texts are also compared with normal ones: unseen tokens, the order of tokens,
    their counts relative to the nearest normal text, and the length. The score sums up how rare
    each of these is. Texts above a threshold are flagged, with reasons.

    Example: ownbert score runs/bert new.txt --normal normal.txt -o scores.jsonl

    Example: ownbert score runs/bert "a text" --tokens
    """
    from ownbert.inference.normal_profile import NORMAL
    from ownbert.inference.score import ScoredRows
    from ownbert.inference.score import score as run
    from ownbert.inference.shards import as_shard
    from ownbert.inspect.explain.explanation_pages import MostUnusual
    from ownbert.train.device import keep_memory

    keep_memory()
    own, to_file = as_shard(shard), str(output) != "-"
    if not to_file:
        o.require_file(resume=resume, shard=shard)
    if settings.html is not None and resume:
        raise InputError("a page needs all rows: omit {--resume} or {--html}")
    inputs: Any = None
    if texts or to_file or settings.html or not settings.normal:
        inputs = given_texts(texts or (), columns, folder, missing=_NOTHING)
    unusual, has_page = MostUnusual(), settings.html is not None
    given: dict[str, Any] = {
        **settings.given(),
        "device": device,
        "engine": engine,
        "say": saying(quiet=quiet),
        "each": unusual,
    }
    count, rows = 0, None
    with counting("texts scored", quiet=quiet) as progress:
        given["progress"] = progress
        if inputs is None or not to_file:
            rows = ScoredRows(folder, inputs, columns=columns, **given)
        else:
            given |= columns.settings()
            count = run(folder, inputs, output, resume=resume, shard=own, **given)
    if settings.normal and not quiet:
        say(f"saved {folder / NORMAL}", err=not to_file)
    if rows is not None and not has_page:
        print_rows(rows)
    elif rows is not None:
        for _ in rows:  # the page collects the rows
            pass
    done = f"{counted(count or unusual.count, 'text')} scored"
    # A resumed run has seen only the last texts.
    if unusual.flagged is not None and unusual.count >= count:
        done += f", {unusual.flagged:,} flagged"
    if to_file and inputs is not None:
        say_saved(done, output if own is None else own.path(output), quiet=quiet)
    if settings.html is not None:
        unusual.write(settings.html, title=folder.name)
        if not quiet:
            start = "" if to_file else f"{done}; "
            say(f"{start}saved {settings.html}", err=not to_file)
