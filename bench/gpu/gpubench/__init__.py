"""Measures gpushare on a real GPU, part by part; checks itself against the simulated one."""
