"""The `gpushare` command: one module per verb family; each is a client of the node API."""
