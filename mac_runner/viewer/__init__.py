"""The pages of a run: served while `mac-run view` runs, or written as files."""
