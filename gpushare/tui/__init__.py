"""`gpushare top` on a whole screen; a client of the node API."""
