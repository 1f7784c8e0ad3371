"""The life of grants: requests, admission, files, leases, memory on loan, restarts, the end."""
