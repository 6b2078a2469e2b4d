"""Unlabelled text: from files to documents, chunks, ids, and the token store."""
