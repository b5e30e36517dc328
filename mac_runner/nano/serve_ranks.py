"""`mac-serve` on several hosts: the program that torchrun or srun starts as every rank.

    torchrun --nnodes 2 --nproc-per-node 2 ... -m mac_runner.nano.serve_ranks MODEL --tensor-parallel-size 2 \
        --data-parallel-size 2

It takes the options of `mac-serve`. Rank 0 serves. The others follow it, and end when it does.
"""

from __future__ import annotations

import os

from mac_runner.serve import main

if __name__ == "__main__":
    main(obj=os.environ, prog_name="mac_runner.nano.serve_ranks")
