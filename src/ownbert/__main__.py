"""``python -m ownbert``: the command line."""

from ownbert.cli import main

if __name__ == "__main__":
    main()
