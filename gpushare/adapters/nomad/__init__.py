"""The device plugin for Nomad, which starts it and talks to it by go-plugin's protocol.

A client of the node API. A task's slots, all of one device, are one grant. Nomad reports neither the task that gets the
slots nor its end, so `usage` looks for its processes. `messages` defines Nomad's and go-plugin's messages, `plugin`
answers them, `tasks` has the decisions, without I/O.
"""
