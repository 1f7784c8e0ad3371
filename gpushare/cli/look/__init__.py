"""Verbs that show what happens now: grants, devices, events, reasons."""
