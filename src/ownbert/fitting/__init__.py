"""``ownbert fit``: the best model that labelled and unlabelled text give in so many minutes."""
