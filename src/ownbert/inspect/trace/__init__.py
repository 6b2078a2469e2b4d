"""Self-attention step by step, with every number, of the worked example or of a model."""

from ownbert.inspect.trace.worked_example import EXAMPLE as EXAMPLE
from ownbert.inspect.trace.worked_example import trace_attention as trace_attention
