"""The process that makes the memory files of the host pool, and empties those that were given back."""
