"""The rules of the game: its state, events, lobbies, acts and calendar.

`state` and `events` come first, and `night/` and `roles/` build on them. The other files build on the roles; `rules`
joins all of them in one pure function.
"""
