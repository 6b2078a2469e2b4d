"""The former name of ``ownbert.transformers``: importing it says what to use instead."""

raise ImportError(
    "ownbert.hf is gone: BertModel, BertTokenizer etc. are in ownbert itself (ownbert.BertModel); "
    "other classes are those of transformers, with ownbert.speed_up(model)"
)
