"""Matrices of a model in use: packed ahead of time, and of 8 bits."""
