"""Which files a call opens."""

import builtins
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def opened(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often ``call`` opens each file in Python, by name (weights are opened in Rust)."""
    counts: Counter[str] = Counter()
    plain = builtins.open

    def counting(file: Any, *args: Any, **kwargs: Any) -> Any:
        counts[Path(str(file)).name] += 1
        return plain(file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", counting)
        call()
    return counts
