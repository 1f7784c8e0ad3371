"""Pure decisions about links: how good one is, and what a program pays to use a device over it."""
