"""The side of the program: which nodes there are, and how a program on this machine uses a device of one of them."""
