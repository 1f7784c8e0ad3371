"""This machine's devices, from the NVIDIA driver or the simulator."""
