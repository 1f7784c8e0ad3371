"""What is wrong on this node, why that matters, and what to do: `gpushare doctor`.

A module per place to look at. Only what root alone can write is opened, besides /proc; what a tenant can make slow is
read by a child that can be killed (`processes`).
"""
