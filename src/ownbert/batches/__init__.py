"""Files to batches: corpora, tables, the token store, masking, packing and loading."""

# Kinds of masking, here so that recipes and --help need not load numpy with batches.masking.
MASKINGS = ("token", "word", "ngram", "span")
