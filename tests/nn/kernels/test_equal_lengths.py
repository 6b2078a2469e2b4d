"""The softmax of short rows of scores."""

import pytest
import torch

from ownbert.nn.attention.attend import _softmax_of_short


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("length", [1, 2, 5, 8, 15])
def test_it_is_the_softmax_and_does_not_depend_on_how_many_rows_there_are(
    length: int, dtype: torch.dtype
):
    generator = torch.Generator().manual_seed(length)
    scores = torch.randn(37, length, length, generator=generator).to(dtype) * 5
    scores[3, 0] = torch.nan
    weights = _softmax_of_short(scores)
    assert weights.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3
    expected = scores.double().softmax(-1)
    torch.testing.assert_close(
        weights.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )
    for count in (1, 2, 36):
        alone = _softmax_of_short(scores[:count])
        assert torch.equal(alone.nan_to_num(7), weights[:count].nan_to_num(7))
