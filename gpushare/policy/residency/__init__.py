"""Where the memory of grants is: on their devices, or in the node's host pool."""
