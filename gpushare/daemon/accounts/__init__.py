"""What grants got, waited for and used: counters, the ledger's periods, receipts, explanations."""
