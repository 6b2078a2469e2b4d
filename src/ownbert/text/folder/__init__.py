"""The files of a tokenizer: read from a folder, and written."""
