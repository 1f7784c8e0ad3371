"""Walls around workloads, and the search for those that use a device past them."""
