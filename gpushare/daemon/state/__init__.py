"""What the daemon knows of devices, tenants and grants, and what follows from it. Changes nothing outside."""
