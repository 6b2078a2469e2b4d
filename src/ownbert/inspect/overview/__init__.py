"""What a model is made of: its parameters, and the shapes in a forward pass."""
