"""Benchmarks. Each answers one question and prints one JSON row last; docs/benchmarks.md quotes such rows."""
