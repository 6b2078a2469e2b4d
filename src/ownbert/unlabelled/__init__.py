"""What a model is of use for before anything is labelled: search, duplicates, topics."""
