"""What pages show of a run: pure functions from transcripts, index rows and event logs to `view_model`."""
