"""Verbs that run an adapter, one module for each engine, scheduler or monitoring system."""
