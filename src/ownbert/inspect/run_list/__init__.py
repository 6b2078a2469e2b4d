"""Comparison of all runs inside a folder."""
