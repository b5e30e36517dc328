"""One model on several processes, as ranks and as replicas, with the bits of one process.

Every matrix is split by its output rows, and a gather puts every activation together again. So each number is the
same sum in the same order as in a single process. Only rank 0 plans, samples and answers; the others follow it.

    launch.py      from a config and a world to an engine
    world.py       which of an engine's processes this one is; how those of a launcher find each other, and compare
    workers.py     other processes as their leader sees them: started, called, watched, ended
    worker.py      the process that is led; it is a rank or a replica (process.py: its program)
    ranks.py       a model and its KV memory on all ranks, as if it were on one; the other ranks
    group.py       which part of a model a rank has, and the gather: through shared memory or torch.distributed
    divergence.py  whether ranks that must do the same have the same
    replicas.py    replicas, independent or in lock step: the leader's side (replica.py: their processes)
"""
