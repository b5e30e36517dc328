"""The parts of nano for CPUs.

threads.py        how many threads torch has, and how they wait; decided before torch is loaded
vectors.py        the instructions of kernels, operations on rows; how kernels are compiled, where they are kept
attention.py      attention over the cache, for all sequences in one pass
"""
