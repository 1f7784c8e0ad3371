"""The durable record of grants and of what they got, whatever the state of the disk and the file."""
