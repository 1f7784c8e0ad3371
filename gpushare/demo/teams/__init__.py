"""`gpushare demo --scenario teams`: teams with quotas, as real processes, share eight simulated devices, and the
simulator's books show after each change how much each got."""
