"""Labelled files: tables, CoNLL columns, and questions in SQuAD's format."""
