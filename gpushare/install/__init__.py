"""What makes a machine a gpushare node: the files of `packaging/`, put in place from the wheel and taken away again.

`items` says what belongs where, `manifest` what an earlier run has put, `place` compares and carries out, `root` finds
paths in another root, `service` speaks to systemd.
"""
