"""Enforcement by the kernel and the driver: cgroups, device programs, the guard, and the table of walls."""
