"""One module per task, with what is known of it before its class is imported."""
