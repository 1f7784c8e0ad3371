"""One module per part; each has functions that take a Context."""
