"""The tokenizers that Transformers users know: BertTokenizer, AutoTokenizer, BatchEncoding, ..."""
