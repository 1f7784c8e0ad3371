"""May a grant be given, on which devices, and what becomes of it."""
