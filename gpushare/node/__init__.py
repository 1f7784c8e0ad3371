"""What this machine has: devices of the NVIDIA driver, or of the simulator."""
