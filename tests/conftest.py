"""Shared by all tests: nothing here starts anything; each area brings its own fixtures."""
