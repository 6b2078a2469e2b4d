"""Labelled files: tables, CoNLL columns and questions in the format of SQuAD."""
