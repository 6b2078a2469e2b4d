"""Why a model or a call is left to Transformers."""


class NotSupported(Exception):
    """The reason why a model or a call is left to Transformers."""
