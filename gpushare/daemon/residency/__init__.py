"""Where the memory of grants is: moves it to the host pool and back. The decisions are gpushare.policy.residency."""
