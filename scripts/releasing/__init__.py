"""Shared by scripts/dist and scripts/deb: how files of a release are made, reproducible to the byte."""
