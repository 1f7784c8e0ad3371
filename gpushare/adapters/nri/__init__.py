"""The plugin for NRI, by which containerd and CRI-O let plugins adjust a container before it is created.

A separate process and, like the runtime wrapper, a client of the node API: the engine describes the container, the
daemon decides, and its edits go back as an adjustment. `connection` is the wire protocol, `messages` the tables of
NRI's messages, `adjustment` translates between NRI and config.json, `plugin` answers the engine.
"""
