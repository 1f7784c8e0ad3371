"""The relay: a process that owns a node's port for remote grants, and connects who has a ticket to a carrier's
server."""
