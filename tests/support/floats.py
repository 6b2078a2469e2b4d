"""Comparing floats that two programs, or two processors, have computed."""

from typing import Any

import numpy as np
import torch

# Processors and libraries sum in orders and widths of their own, so results agree to some last
# digits only. Through a few layers in float32 (whose numbers are 1.2e-7 apart relative to their
# size) differences of 5e-6 have been seen between AMD and Intel; mistakes are far larger.
RELATIVE = 1e-5


def assert_close(
    found: Any, expected: Any, *, rtol: float = RELATIVE, scale: float = 1.0, name: str = ""
) -> None:
    """``found`` is ``expected`` but for rounding: within ``rtol`` of each value and of the scale.

    Args:
        found: a tensor, an array or a number.
        expected: the same of the same shape, or one number for all.
        rtol: the share by which values may differ.
        scale: the size of the numbers that the values are sums of, where that is more than the
            largest of the values. A value near zero may be what is left of large numbers, and its
            error is in proportion to them. Where layer norm has made the numbers, that is 1; a
            gradient may be small throughout: 0.
        name: of what is compared, for the message.

    Raises:
        AssertionError: something differs by more, or in its shape.
    """
    one, two = _array(found), _array(expected)
    if two.ndim:  # a number stands for all
        assert one.shape == two.shape, f"{name}: shape {one.shape}, expected {two.shape}"
    finite = np.abs(two[np.isfinite(two)])
    largest = max(scale, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(one, two, rtol=rtol, atol=rtol * largest, err_msg=name)


def _array(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        return values.detach().double().numpy()
    return np.asarray(values, dtype=np.float64)
