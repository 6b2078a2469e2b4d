"""Why a model answers as it does: relevance of words for every head, and whether it is true."""
