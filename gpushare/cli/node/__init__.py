"""Verbs about the node itself: installed, served, checked, drained, simulated, and joined with its engines."""
