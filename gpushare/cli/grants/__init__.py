"""Verbs that decide who gets a share: runs, grants, gangs, plans, and the tenants with their quotas."""
