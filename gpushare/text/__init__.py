"""What people write and read: sizes and times, TOML with line numbers, receipts as sentences, names made safe. Pure."""
