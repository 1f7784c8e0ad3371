"""The machine that the daemon runs on: processes and users, directories, helpers that read, the log."""
