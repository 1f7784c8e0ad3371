"""Who is entitled to how much: guarantees, limits, weights and tiers of tenants, and what they leave idle."""
