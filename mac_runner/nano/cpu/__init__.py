"""The parts of nano for CPUs.

threads.py        how many threads torch has, and how they wait; decided before torch is loaded
vectors.py        the instructions that kernels are made of, how these are compiled, and where they are kept
attention.py      attention over the cache, for all sequences in one pass
row_kernels.py    operations on each row of a matrix
"""
