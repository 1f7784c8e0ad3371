"""PyTorch workloads on command: torch_load.py gemm|resnet|transformer|decode|eager [PAUSE_MS]

Commands on stdin: run, idle, quit; one JSON object each on stdout. `idle` reports the steps since `run` and their times
as the host saw them; with PAUSE_MS there is think time between steps, as an inference server has.
"""

import json
import os
import random
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Step = Callable[[], None]
_graphed: list[object] = []
"""Keeps alive what captured graphs read: they hold only addresses."""


def gemm() -> Step:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def step() -> None:
        torch.mm(a, b, out=out)

    return step


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        same = channels == out and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def _resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            layers.append(Bottleneck(channels, inner, 4 * inner, stride if index == 0 else 1))
            channels = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def _training(model: nn.Module, data: torch.Tensor, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(data))
        loss.backward()
        optimizer.step()

    return step


def resnet() -> Step:
    target = torch.randint(0, 1000, (64,), device="cuda")
    return _training(
        _resnet50(), torch.randn(64, 3, 224, 224, device="cuda"), lambda out: nn.functional.cross_entropy(out, target)
    )


def transformer() -> Step:
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    return _training(model, torch.randn(8, 512, 1024, device="cuda"), lambda out: out.float().pow(2).mean())


class Decoder(nn.Module):
    """One token through the linear layers of a decoder with a cached context of 1024 tokens."""

    def __init__(self, layers: int = 24, width: int = 2048, context: int = 1024) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.register_buffer("cache", torch.randn(layers, 2, 16, context, width // 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, (qkv, out, up, down) in enumerate(zip(self.qkv, self.out, self.up, self.down, strict=True)):
            query = qkv(x)[:, : x.shape[1]].view(16, 1, -1)
            keys, values = self.cache[layer]
            mixed = nn.functional.scaled_dot_product_attention(query, keys, values).view(1, -1)
            x = x + out(mixed)
            x = x + down(nn.functional.gelu(up(nn.functional.layer_norm(x, x.shape[-1:]))))
        return x


def decode() -> Step:
    """A graph per token."""
    model = Decoder().cuda().to(torch.bfloat16)
    token = torch.randn(1, 2048, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(token)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(token)
    _graphed.append((model, token))
    return graph.replay


def eager() -> Step:
    """The same decoder launch by launch: bound by the host."""
    model = Decoder().cuda().to(torch.bfloat16)
    token = torch.randn(1, 2048, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            model(token)

    return step


KINDS: dict[str, Callable[[], Step]] = {
    "gemm": gemm,
    "resnet": resnet,
    "transformer": transformer,
    "decode": decode,
    "eager": eager,
}


def answer(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    count = len(ordered)
    return {
        "n": count,
        "sum": sum(ordered),
        "p50": ordered[count // 2],
        "p90": ordered[count * 90 // 100],
        "p99": ordered[count * 99 // 100],
        "max": ordered[-1],
    }


class Program:
    def __init__(self, step: Step, pause: float) -> None:
        self.step, self.pause = step, pause
        self.times: list[float] = []
        self.began = 0.0
        self.running = False

    def one(self) -> None:
        at = time.perf_counter_ns()
        self.step()
        torch.cuda.synchronize()
        self.times.append(time.perf_counter_ns() - at)
        if self.pause:
            time.sleep(self.pause * random.uniform(0.5, 1.5))

    def handle(self, command: str) -> bool:
        if command == "run":
            self.times, self.began, self.running = [], time.monotonic(), True
            answer(event="run")
        elif command == "idle":
            self.running = False
            latency = summary(self.times) if self.times else None
            wall = int(1e9 * (time.monotonic() - self.began))
            answer(event="idle", units=len(self.times), wall_ns=wall, latency_ns=latency)
        elif command == "quit":
            return False
        else:
            answer(event="unknown")
        return True

    def serve(self) -> None:
        buffer = b""
        while True:
            if select.select([0], [], [], 0 if self.running else None)[0]:
                read = os.read(0, 4096)
                if not read:
                    return
                *lines, buffer = (buffer + read).split(b"\n")
                if not all(self.handle(line.decode()) for line in lines):
                    return
            if self.running:
                self.one()


def main() -> None:
    torch.manual_seed(1)
    with torch.device("cuda"):  # a billion random weights take the processor many seconds
        step = KINDS[sys.argv[1]]()
    program = Program(step, float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0)
    for _ in range(5):
        program.one()
    answer(event="ready", pid=os.getpid())
    program.serve()


if __name__ == "__main__":
    main()
