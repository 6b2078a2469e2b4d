"""The start of fine-tuning: initial weights, vocabulary, and head."""
