"""Reading and writing the files of a tokenizer."""
