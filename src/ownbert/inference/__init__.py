"""Trained models in use: predictions, vectors and filled masks."""
