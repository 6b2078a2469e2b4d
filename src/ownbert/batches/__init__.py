"""Files to batches: corpora, tables, the token store, masking, packing and loading."""

# Kinds of masking; in data.masking, recipes and with them --help would have to load numpy.
MASKINGS = ("token", "word", "ngram", "span")
