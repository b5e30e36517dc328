"""Intervals, survival and tests behind figures: pure functions over numbers, which need numpy and SciPy."""
