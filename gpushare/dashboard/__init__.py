"""`gpushare dashboard`: a web page about nodes, served on loopback; a client of the node API."""
