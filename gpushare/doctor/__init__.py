"""What is wrong on this node, why that matters, and what to do: `gpushare doctor`.

One module for each area. Besides /proc, only files that only root can write are opened; what a tenant can make slow is
read by a child process that can be killed (`aside`).
"""
