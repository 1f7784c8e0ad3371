"""Serves the daemon's metrics to Prometheus, which scrapes only by TCP, while the daemon listens only on a unix socket.

A client of the node API that answers `GET /metrics` and nothing else, as an unprivileged user.
"""
