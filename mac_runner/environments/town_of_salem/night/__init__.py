"""One night: its state, and the order in which it is resolved (rules, section 6)."""
