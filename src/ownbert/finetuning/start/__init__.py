"""Where a fine-tuning starts: weights, vocabulary, and the head."""
