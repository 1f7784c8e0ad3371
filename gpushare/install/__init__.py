"""Makes a machine a gpushare node: installs the files of `packaging/` from the wheel, and removes them again.

`items` defines what belongs where, `manifest` records what an earlier run installed, `place` plans and carries out the
changes, `root` finds paths in another root, `service` talks to systemd.
"""
