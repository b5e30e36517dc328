"""What a game is made of: its state and events, roles and their abilities, the night in which these act."""
