"""`gpushare demo --scenario notebooks`: three notebooks that together need one and a half devices, and a trainer that
borrows, share one simulated device. The programs compare every byte of their variables, and the simulator's books say
whose memory was where."""
