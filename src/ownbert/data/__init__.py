"""Files to batches: corpora, tables, the token store, masking, packing and loading."""
