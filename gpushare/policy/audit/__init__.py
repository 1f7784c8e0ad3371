"""What the driver counts, compared with the books."""
