"""Pure decisions: no I/O, no clock, no threads. Time is an argument, everything is integers: milli-GPU and bytes."""
