"""What families are made of: rules, weight maps, heads, config keys and calls."""
