"""HTCondor: devices as its startd reads them from condor_gpu_discovery, and the share of a job that was given some.

A client of the node API that runs once and ends. `ads` decides, without I/O.
"""
