"""The process that owns the sockets of all grants, so that no tenant's messages or slowness block the daemon."""
