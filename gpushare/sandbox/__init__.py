"""The sandbox: a process that starts carriers' servers, each inside its grant, where it reaches nothing but its
device."""
