"""The report of a comparison: what the numbers are worth and what to do next."""
