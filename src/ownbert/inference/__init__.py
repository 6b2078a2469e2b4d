"""Using trained models: predictions, embeddings and filled masks."""
