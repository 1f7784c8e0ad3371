"""Remote grants: programs of other machines use a grant through a carrier's server in it, and the relay."""
