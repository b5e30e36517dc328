"""The record of a finished game: what happened, and the truth about it."""
