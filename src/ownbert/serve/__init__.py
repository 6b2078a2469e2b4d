"""``ownbert serve``: model folders over HTTP, with the APIs of existing clients."""
