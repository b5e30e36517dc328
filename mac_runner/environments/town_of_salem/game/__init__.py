"""The rules of the game: its state, its events, its acts and its calendar."""
