"""The durable record of grants and of what they got, whatever the disk and the file are like."""
