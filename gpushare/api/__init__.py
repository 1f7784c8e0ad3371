"""What goes over the node API: one definition for the daemon, the client and the OpenAPI document."""
