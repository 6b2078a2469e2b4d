"""The structure of a model: its parameters, and the shapes of a forward pass."""
