"""Where a classifier is wrong: confident mistakes, groups that fail, labels that may be wrong."""
