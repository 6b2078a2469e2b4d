"""Attention: ``attend`` and its backends."""
