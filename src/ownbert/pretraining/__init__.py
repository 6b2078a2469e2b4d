"""Pretraining: from a token store to a model folder."""
