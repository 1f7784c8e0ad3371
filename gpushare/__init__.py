"""gpushare: exact shares of NVIDIA GPUs for many containers on one node."""

DISTRIBUTION = "gpushare-node"
"""What pip calls this package. `gpushare` is somebody else's on PyPI."""
__version__ = "0.1.0"
