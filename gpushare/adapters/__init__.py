"""Plugins for engines and schedulers: each is a separate process and a client of the node API, never in the daemon."""
