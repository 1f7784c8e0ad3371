"""What the kernel holds for us: cgroups and the device program."""
