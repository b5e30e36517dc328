"""Experiment files of other runners, rewritten as files of ours. One package a runner."""
