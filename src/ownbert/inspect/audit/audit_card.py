"""The section of a model card on memorisation."""

import re
from collections.abc import Iterator
from pathlib import Path

from ownbert.exceptions import percent
from ownbert.files.folders import is_ours
from ownbert.files.writing import write_text
from ownbert.inspect.audit.audit import Audit
from ownbert.language import translated
from ownbert.run.model_card import CARD, cell, table

_TITLE = "Memory of the training texts"


def lines(audit: Audit) -> Iterator[tuple[str, str]]:
    """Yield the results as names and values, without any text."""
    membership = audit.membership
    name = f"training texts separated from held-out texts by their {membership.score} (AUROC)"
    yield translated(name), f"{membership.auc:.3f} ({membership.low:.3f} - {membership.high:.3f})"
    yield (
        translated("training texts detected, at a false positive rate of 1% on held-out texts"),
        f"{percent(membership.found)}",
    )
    for times in sorted({canary.times for canary in audit.canaries}):
        exposures = [canary.exposure for canary in audit.canaries if canary.times == times]
        of = f"sequences planted {times:,} x ({len(exposures):,} of them; 10 bits at most)"
        yield translated(f"mean exposure of {of}"), f"{sum(exposures) / len(exposures):.1f}"
    if audit.rare is not None:
        rare = audit.rare
        shares = (
            ("rare tokens of training texts reproduced", rare.given_back, rare.count),
            ("rare tokens of held-out texts reproduced", rare.of_held_out, rare.held_out),
        )
        for name, share, count in shares:
            yield translated(name), f"{percent(share)}" if count else translated("no rare tokens")
    for name, count in audit.copies.items():
        yield translated(f"training texts with a part in {name}"), f"{count:,}"


def add_to_card(folder: Path, audit: Audit) -> str | None:
    """Add the section to the README.md of a folder, or replace the existing one.

    Returns:
        A warning or None.
    """
    path = folder / CARD
    if not path.exists() or not is_ours(path):
        return f"{folder} has no model card written by ownbert; no section was added"
    title, versions = f"## {translated(_TITLE)}", f"## {translated('Versions')}"
    rows = [(cell(name), value) for name, value in lines(audit)]
    advice = "\n".join(f"- {translated(sentence)}" for sentence in audit.advice())
    section = f"{title}\n\n{table(('', ''), rows)}\n\n{advice}\n\n"
    text = path.read_text(encoding="utf-8")
    text = re.sub(rf"(?ms)^{re.escape(title)}\n.*?(?=^## |\Z)", "", text)
    place = text.rfind(f"{versions}\n")
    place = len(text) if place < 0 else place
    write_text(path, text[:place] + section + text[place:])
    return None
