"""`gpushare demo`: two containers share one device, and independent measurements show whether each guarantee was
kept."""
