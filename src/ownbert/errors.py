"""The exception for every mistake of a user."""


class InputError(ValueError):
    """A file, value or setting that cannot be used.

    The message is one line: what is wrong, where, and what would be right. The command line
    prints it and exits with code 2; in Python it is a subclass of ``ValueError``.
    """
