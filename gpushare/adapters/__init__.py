"""Plugins of engines and schedulers: each a process of its own and a client of the node API, none inside the daemon."""
