"""Slurm's `gres/shard`, which holds: Slurm counts shards of a GPU, the node's daemon gives the job that much of it.

`job` says what a job has and asks, pure; `programs` are the prolog and epilog that slurmd calls; `conf` writes lines of
Slurm's configuration and the task prolog. The grant of a job is kept until its epilog, and found by its key.
"""
