"""What PyTorch takes of device memory, step by step: one command a line on stdin (import, context, cublas, conv, graph,
grow BYTES), one JSON object each on stdout, so that an observer can read the device between them."""

import json
import os
import sys
from typing import Any

kept: list[Any] = []


def step(command: str, *rest: str) -> None:
    import torch

    if command == "context":
        kept.append(torch.zeros(1, device="cuda"))
    elif command == "cublas":
        a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
        kept.append(a @ a)
    elif command == "conv":
        kept.append(torch.nn.Conv2d(64, 64, 3).cuda()(torch.randn(8, 64, 56, 56, device="cuda")))
    elif command == "graph":
        value = torch.zeros(1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            value += 1
        graph.replay()
        kept.append(graph)
    elif command == "grow":
        kept.append(torch.empty(int(rest[0]), dtype=torch.uint8, device="cuda"))
    if command != "import":
        torch.cuda.synchronize()
    allocated = torch.cuda.memory_allocated() if kept else 0
    reserved = torch.cuda.memory_reserved() if kept else 0
    print(json.dumps({"event": command, "allocated_bytes": allocated, "reserved_bytes": reserved}), flush=True)


print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
    step(*line.split())
