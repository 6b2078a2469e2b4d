"""matplotlib, an optional package, is there for the tests that look at plots and for no others."""

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

# What everything that plots imports first. None among the loaded modules makes that import fail as
# it does where the package is not installed.
_FIGURE = "matplotlib.figure"


@contextlib.contextmanager
def matplotlib_missing() -> Iterator[None]:
    """As where ``ownbert`` was installed without its extra ``plot``. Most of the time of a short
    training is that of the plots at its end."""
    with _loaded(None):
        yield


@contextlib.contextmanager
def matplotlib_installed() -> Iterator[None]:
    """As where it was installed with the extra."""
    with _loaded(_real()):
        yield


@functools.cache
def _real() -> ModuleType:
    with _loaded(None):
        del sys.modules[_FIGURE]
        return importlib.import_module(_FIGURE)


@contextlib.contextmanager
def _loaded(module: ModuleType | None) -> Iterator[None]:
    known, before = _FIGURE in sys.modules, sys.modules.get(_FIGURE)
    sys.modules[_FIGURE] = module  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(_FIGURE, None)
        if known:
            sys.modules[_FIGURE] = before  # type: ignore[assignment]
