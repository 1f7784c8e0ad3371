"""Verbs about other nodes."""
