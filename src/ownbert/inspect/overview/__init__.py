"""What a model is made of: its parameters, and the shapes of a text on its way through it."""
