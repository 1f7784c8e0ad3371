"""The C parts in the daemon (native/binding) as typed objects: the pages of a grant, its messages, the arbiter."""
