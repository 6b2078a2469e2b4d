"""``ownbert serve``: model folders behind HTTP, for the clients that people already have."""
