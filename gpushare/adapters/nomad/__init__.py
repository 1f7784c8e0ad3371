"""The device plugin for Nomad, which starts it and speaks go-plugin's protocol with it.

A client of the node API. A task's slots, all of one device, are one grant; Nomad tells neither whose they are nor when
the task ends, so `usage` looks for its processes. `messages` are Nomad's and go-plugin's, `plugin` answers them.
"""
