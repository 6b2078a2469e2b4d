"""Files and folders: read with clear errors, and written completely or not at all."""
