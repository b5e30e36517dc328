"""The rules of the game: lobbies, acts, the calendar, the night; `moves` joins them in one pure function."""
