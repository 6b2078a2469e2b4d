"""One module for each API of the server."""
