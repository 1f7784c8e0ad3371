"""Memory on loan, and how it is taken back."""
