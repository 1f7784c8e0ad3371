"""gpushare: exact shares of NVIDIA GPUs for many containers on one node."""

__version__ = "0.1.0"
