"""``ownbert fit``: find the best model for labelled and unlabelled text within a time budget."""
