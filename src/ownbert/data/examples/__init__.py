"""What pretraining learns from: spans of the corpus, pairs of them, and word co-occurrences."""
