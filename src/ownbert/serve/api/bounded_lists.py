"""Lists in request bodies."""

from typing import Annotated, TypeVar

from pydantic import FailFast

T = TypeVar("T")


class _FailFast(FailFast):
    """pydantic's FailFast, hashable for lists in a union."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


# A list whose validation stops at the first error: describing a hundred thousand takes seconds.
Several = Annotated[list[T], _FailFast()]
