"""The internals of a model on one input, and the parts of pages that show them."""
