"""Parts that some families have, or beside a plain encoder."""
