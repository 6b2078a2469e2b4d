"""Unlabelled text: files in, documents, chunks, ids, and the token store out."""
