"""Audits of training-data memorisation."""
