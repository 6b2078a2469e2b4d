"""Inference with trained models: predictions, embeddings and filled masks."""
