"""Sparse matrices of scipy, for the type checker.

``scipy.sparse`` has no annotations, and the type checker would take seconds to infer them.
"""

from typing import Any, cast

import scipy.sparse

sparse = cast(Any, scipy.sparse)
Matrix = Any  # a csr_array
