"""Optimisers and their parameter groups."""
