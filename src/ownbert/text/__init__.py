"""Text to token ids: vocabularies, tokenizers and sentence splitting, based on ``tokenizers``."""
