"""Fine-tuning: from labelled rows to a model folder, an ensemble or a search."""
