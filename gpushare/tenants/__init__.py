"""tenants.toml: read with the line of every mistake, checked, and changed with its comments kept."""
