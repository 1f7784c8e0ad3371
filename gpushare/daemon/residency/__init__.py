"""Where the memory of grants is: the host pool."""
