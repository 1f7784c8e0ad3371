"""Processes of grants: how they join, what is noticed of their end, how they are notified."""
