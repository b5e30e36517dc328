"""Results of discussions: counted from their outcomes, and shown."""
