"""Public functions run with float32 as PyTorch's default type, whatever the caller has set."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_lock = threading.Lock()
# Calls in progress, and the caller's type while there are any.
_running = 0
_callers_type: Any = None


@contextmanager
def float32_default() -> Iterator[None]:
    """A context in which new tensors without a type are float32.

    ``torch.set_default_dtype`` holds for all threads, so the caller's type is set again when the
    last of several calls ends.
    """
    global _running, _callers_type
    torch = sys.modules["torch"]
    with _lock:
        if _running == 0:
            _callers_type = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                torch.set_default_dtype(_callers_type)


def in_float32(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a public function or method that computes with PyTorch: with another default type,
    weights would be created and saved in that type, and operations would mix types."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        torch: Any = sys.modules.get("torch")
        # A type can only have been set if torch is imported.
        if torch is None or torch.get_default_dtype() is torch.float32:
            return function(*args, **kwargs)
        with float32_default():
            return function(*args, **kwargs)

    return call
