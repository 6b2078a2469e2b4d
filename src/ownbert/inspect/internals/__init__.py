"""What happens inside of a model on one input, and the parts of pages that show it."""
