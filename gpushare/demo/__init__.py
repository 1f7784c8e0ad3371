"""`gpushare demo`: two containers share one device, and the books say whether every promise held."""
