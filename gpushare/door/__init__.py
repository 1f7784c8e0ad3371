"""The process that has the sockets of all grants: what tenants send, and how long they take, ends here."""
