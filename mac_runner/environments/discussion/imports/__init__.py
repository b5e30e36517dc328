"""Experiment files of other runners, written anew as files of ours. One package a runner."""
