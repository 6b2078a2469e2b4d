"""Characters to ids: vocabularies, tokenizers and sentences, on the ``tokenizers`` library."""
