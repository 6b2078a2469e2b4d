"""Answers of many rows in files: written, in shards, and joined."""
