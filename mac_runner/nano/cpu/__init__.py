"""What runs on a CPU: threads, kernels compiled by numba, attention over the cache."""
