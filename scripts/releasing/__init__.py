"""What scripts/dist and scripts/deb share: how files of a release are made, the same bytes for whoever repeats it."""
