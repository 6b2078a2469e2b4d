"""Prediction files: writing, sharding and merging."""
