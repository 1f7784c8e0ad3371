"""What usage cost, how long waits were, what other quotas would have given."""
