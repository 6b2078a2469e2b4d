"""Token ids to batches: examples, masking, packing and loading."""

# Kinds of masking, here so that recipes and --help need not load numpy with batches.masking.
MASKINGS = ("token", "word", "ngram", "span")
