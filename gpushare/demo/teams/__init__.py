"""`gpushare demo --scenario teams`: teams with quotas share eight simulated devices, as real processes, and the
simulator's books show after each change who got how much."""
