"""Without labels: search, duplicates, topics, and which texts to label next."""
