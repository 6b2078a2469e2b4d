"""One tag per word: names, parts of speech, chunks."""
