"""A task = reader of its files + head + objective + metrics + predict."""
