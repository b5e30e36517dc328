"""Questions with a number for an answer. Each prints one JSON row last; docs/benchmarks.md quotes such rows."""
