"""What a model does not know: label sets with a stated coverage, and texts of no label."""
