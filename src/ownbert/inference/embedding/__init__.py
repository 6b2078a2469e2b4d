"""Embedding vectors of texts."""
