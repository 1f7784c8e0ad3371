"""The process that writes a line to the standard error of a process that was stopped, as that process's user."""
