"""Engines on the GPUs of this machine: found, placed, started, watched and started again."""
