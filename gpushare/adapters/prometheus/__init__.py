"""What the daemon measures, for a Prometheus: it scrapes by TCP alone, and the daemon listens on a unix socket alone.

A client of the node API that answers `GET /metrics` and nothing else, as a user without rights.
"""
