"""The node API over its socket: connections, routes, decoding, answers, metrics."""
