"""The report of a comparison: how reliable the numbers are, and what to do next."""
