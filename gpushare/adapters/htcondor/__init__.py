"""HTCondor: lists devices in the format of condor_gpu_discovery for startd, and computes a job's share from the slots
that it was assigned.

A client of the node API that runs once and exits. `ads` has the decisions, without I/O.
"""
