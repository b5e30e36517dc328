"""Tensor parallelism: one model on several processes of one machine, with the bits of one process.

Every matrix is split by its output rows and every activation put together again by a gather, so each number is the
same sum in the same order as in a single process. Only rank 0 plans, samples and answers; the others follow it.

    shard.py      which part of a model is a rank's
    group.py      the gather: through memory that the ranks share, or over torch.distributed
    messages.py   what rank 0 tells the others, and what they answer
    parcel.py     a state dict in memory that processes share
    ranks.py      the other ranks as rank 0 sees them: started, told, watched, ended
    follower.py   what another rank does: obey, one message after the other
    runner.py     a model and its KV memory on all ranks, as if it were on one
"""
