"""Tools for unlabelled texts: search, duplicates, topics, and selection of texts to label."""
