"""The flat tables of runs: what they hold, as Arrow and as files."""
