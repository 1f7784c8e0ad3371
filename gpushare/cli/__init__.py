"""The `gpushare` command: one module per verb family, each a client of the node API."""
