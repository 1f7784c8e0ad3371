"""A PyTorch program with BYTES of random numbers: torch_resident.py BYTES. Answers `sum` on stdin with their sum."""

import json
import os
import sys

import torch

PIECE = 64 << 20

torch.manual_seed(1)
tensors = [
    torch.randint(-(1 << 31), 1 << 31, (PIECE // 4,), dtype=torch.int32, device="cuda")
    for _ in range(int(sys.argv[1]) // PIECE)
]
torch.cuda.synchronize()
print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
    total = sum(int(tensor.sum(dtype=torch.int64).item()) for tensor in tensors)
    print(json.dumps({"event": "sum", "sum": total}), flush=True)
