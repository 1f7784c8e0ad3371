"""The plugin for NRI, by which containerd and CRI-O let others adjust a container before it is made.

A client of the node API like the runtime wrapper, as a process of its own: the engine says what it is about to start,
the daemon decides, and its edits go back as an adjustment. `connection` is the wire, `adjustment` says one in the words
of the other, `plugin` answers the engine.
"""
