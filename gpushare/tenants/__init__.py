"""tenants.toml: read with the place of every mistake, checked, changed with its comments kept."""
