"""The node's devices while the daemon runs: which there are, whether they work, and which take no new grants."""
