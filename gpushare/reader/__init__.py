"""The process that reads for the daemon whatever others can make slow: bundles, images, the user database. It has no
ledger and no authority, and may be killed.

Paths in a bundle may be on a file system that never answers, and an image may be built to be slow: the daemon sets each
job a time limit, and kills the reader that exceeds it (daemon/host/readers.py).
"""
