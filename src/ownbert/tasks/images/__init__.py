"""Tasks with images as input."""
