"""Simulated time: the real scheduler and environments, against engines that are computed."""
