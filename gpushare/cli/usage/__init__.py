"""`gpushare usage`: tables, pictures, bills, and the recalculation of past hours."""
