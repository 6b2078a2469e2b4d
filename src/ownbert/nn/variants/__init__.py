"""Variants of layers for some families, and additions to a plain encoder."""
