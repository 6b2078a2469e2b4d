"""Models made by Transformers, computed by OwnBERT's packed network (``ownbert.speed_up``)."""
