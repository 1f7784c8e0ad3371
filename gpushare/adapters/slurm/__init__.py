"""Slurm's `gres/shard`, enforced: Slurm counts shards of a GPU, and the node's daemon gives the job that much of it.

`job` determines what a job has and asks for, pure; `programs` implements the prolog and epilog that slurmd calls;
`conf` writes lines of Slurm's configuration and the task prolog. A job's grant is kept until its epilog, and found by
its key.
"""
