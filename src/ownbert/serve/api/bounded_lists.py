"""Lists in the bodies of requests."""

from typing import Annotated, TypeVar

from pydantic import FailFast

T = TypeVar("T")


class _FirstMistake(FailFast):
    """pydantic's, for lists in a union, which must be hashable."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


# Checked to the first mistake: to describe a hundred thousand takes seconds.
Several = Annotated[list[T], _FirstMistake()]
