"""Self-attention step by step, with all numbers, of a worked example or of a model."""

from ownbert.inspect.trace.trace import EXAMPLE as EXAMPLE
from ownbert.inspect.trace.trace import trace_attention as trace_attention
