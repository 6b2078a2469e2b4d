"""Error analysis of classifiers: confident mistakes, failing groups, likely label errors."""
