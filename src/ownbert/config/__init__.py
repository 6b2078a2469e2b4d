"""The structure of a network, independent of training and labels."""

from ownbert import limits
from ownbert.checks import between, count, number_in

# "gelu" is the exact GELU, with erf, as in Transformers; Google's approximation is "gelu_new".
ACTIVATIONS = (
    *("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "quick_gelu", "relu"),
    *("relu6", "leaky_relu", "silu", "swish", "mish", "tanh", "sigmoid", "linear"),
)
WIDTH_CHECK = count(1, limits.WIDTH)
# A dropout rate. With a rate of 1 nothing would be left.
RATE_CHECK = number_in(between(0, 1, "[)"))
