"""The service: node API, grants, ledger, watch stream. One event loop owns all state."""
