"""The components of families: rules, weight maps, heads, config keys and calls."""
