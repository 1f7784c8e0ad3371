"""Programs of PyTorch users, each a function: `python programs.py NAME` prints its results as JSON.

Computed values mean nothing on a simulated device: only results that are the same wherever the program runs are
printed.
"""

import json
import os
import sys
import threading

import torch
from torch import nn

MIB, GIB = 1 << 20, 1 << 30
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def memory():
    return {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}


def model(width=256, depth=2):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10)).cuda()


def train(net, optimizer, steps=5, width=256):
    for _ in range(steps):
        loss = net(torch.randn(64, width, device="cuda")).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()


def allocations():
    seen, kept = [], []
    for size in (1, 1000, MIB, 10 * MIB + 7, 300 * MIB):
        kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        seen.append(torch.cuda.memory_allocated())
    del kept[2:4]
    seen.append(torch.cuda.memory_allocated())
    kept.append(torch.ones(8 * MIB, dtype=torch.uint8, device="cuda"))
    kept.clear()
    torch.cuda.empty_cache()
    return {"seen": seen, "end": memory()}


@program
def caching_allocator():
    return allocations()


@program
def expandable_segments():
    """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"""
    return allocations()


@program
def malloc_async():
    """PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"""
    return allocations()


@program
def private_pools():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.ones(40 * MIB, dtype=torch.uint8, device="cuda")
    before = memory()
    del kept, pool
    torch.cuda.empty_cache()
    return {"before": before, "after": memory()}


@program
def memory_fraction():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.25)
    kept = torch.empty(total // 8, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(total // 4, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        refused = True
    return {"kept": kept.numel() == total // 8, "refused": refused}


@program
def out_of_memory():
    free, total = torch.cuda.mem_get_info()
    kept = []
    try:
        while True:
            kept.append(torch.empty(total // 16, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        states = f"{total / GIB:.2f} GiB" in str(error)
    held = sum(tensor.numel() for tensor in kept)
    kept.clear()
    torch.cuda.empty_cache()
    again = torch.ones(total // 2, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return {
        "most of it": held > 0.85 * total,
        "says the total": states,
        "free": free > 0.9 * total,
        "again": again.is_cuda,
    }


@program
def pinned_memory():
    here = torch.arange(1 << 20).pin_memory()
    there = here.to("cuda", non_blocking=True)
    back = torch.empty_like(here).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    return {"same": bool((here == back).all()), "pinned": back.is_pinned()}


@program
def streams():
    lanes = [torch.cuda.Stream() for _ in range(8)]
    tensors = []
    for lane in lanes:
        with torch.cuda.stream(lane):
            tensors.append(torch.ones(MIB, device="cuda"))
            for _ in range(20):
                tensors[-1] = tensors[-1] * 2 + 1
    for lane in lanes:
        torch.cuda.current_stream().wait_stream(lane)
    torch.cuda.synchronize()
    return {"idle": all(lane.query() for lane in lanes), "allocated": torch.cuda.memory_allocated()}


@program
def threads():
    failed = []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                net = model(64)
                train(net, torch.optim.SGD(net.parameters(), lr=0.1), width=64)
        except Exception as error:
            failed.append(repr(error))

    crew = [threading.Thread(target=work) for _ in range(8)]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    return {"failed": failed}


@program
def graphs():
    fixed = torch.ones(1024, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        for _ in range(3):
            fixed * 2
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = (fixed * 2 + 1).relu()
    for _ in range(10):
        graph.replay()
    net = model()
    called = torch.cuda.make_graphed_callables(net, (torch.randn(64, 256, device="cuda"),))
    loss = called(torch.randn(64, 256, device="cuda")).sum()
    loss.backward()
    torch.cuda.synchronize()
    return {"shape": list(out.shape), "gradients": all(one.grad is not None for one in net.parameters())}


@program
def compiled():
    @torch.compile
    def fused(x, y):
        return torch.nn.functional.gelu(x * y + 1).sum(dim=-1)

    x, y = (torch.randn(128, 512, device="cuda") for _ in range(2))
    out = fused(x, y)
    torch.cuda.synchronize()
    return {"shape": list(out.shape)}


@program
def optimizers():
    for options in ({"foreach": True}, {"fused": True}, {"capturable": True}):
        net = model()
        train(net, torch.optim.AdamW(net.parameters(), **options))
    return {"allocated": torch.cuda.memory_allocated() > 0}


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((16,), float(index))


@program
def data_loaders():
    sums = {}
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(
            Numbers(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context=method
        )
        torch.ones(1, device="cuda")
        sums[method] = sum(float(batch.cuda(non_blocking=True).cpu().sum()) for batch in loader)
    return sums


def fill(queue, back):
    tensor = queue.get()
    tensor.copy_(torch.arange(1024))
    torch.cuda.synchronize()
    back.put(True)
    queue.get()


@program
def shared_tensors():
    context = torch.multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=fill, args=(queue, back))
    child.start()
    tensor = torch.zeros(1024, dtype=torch.int64, device="cuda")
    queue.put(tensor)
    back.get(timeout=60)
    same = bool((tensor.cpu() == torch.arange(1024)).all())
    queue.put(None)
    child.join(60)
    return {"same": same, "exit": child.exitcode}


def rank(number, store, results):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    net = nn.parallel.DistributedDataParallel(model(64), device_ids=[0])
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), width=64)
    torch.distributed.destroy_process_group()
    results.put(number)


@program
def two_ranks():
    import tempfile

    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        crew = [context.Process(target=rank, args=(number, f"{directory}/store", results)) for number in range(2)]
        for one in crew:
            one.start()
        for one in crew:
            one.join(100)
    return {"exits": [one.exitcode for one in crew]}


@program
def profiler():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        (torch.ones(1024, device="cuda") * 2).sum()
        torch.cuda.synchronize()
    return {"operators": any(event.key == "aten::mul" for event in found.key_averages())}


@program
def snapshot():
    torch.cuda.memory._record_memory_history()
    kept = torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
    found = torch.cuda.memory._snapshot()
    return {"segments": len(found["segments"]), "traces": len(found["device_traces"][0]) > 0, "kept": kept.numel()}


@program
def nvml():
    torch.ones(1 << 24, device="cuda").sum()
    torch.cuda.synchronize()
    return {"percent": 0 <= torch.cuda.utilization() <= 100, "memory": torch.cuda.memory_usage() >= 0}


class Block(nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, words=1000, width=256, depth=4):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, tokens, caches=None):
        x = self.embed(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[number])
        return self.head(x)


def train_transformer(steps):
    net = Transformer().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(steps):
        tokens = torch.randint(0, 1000, (8, 128), device="cuda")
        loss = nn.functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    return net


@program
def transformer():
    net = train_transformer(int(os.environ.get("STEPS", "10")))
    return {"gradients": all(one.grad is not None for one in net.parameters())}


@program
def generation():
    net = Transformer().cuda().half().eval()
    caches = [[] for _ in net.blocks]
    tokens = torch.zeros(4, 1, dtype=torch.long, device="cuda")
    with torch.no_grad():
        for _ in range(64):
            tokens = net(tokens, caches)[:, -1:].argmax(-1).clamp(0, 999)
    torch.cuda.synchronize()
    return {"cached": list(caches[0][0].shape)}


@program
def one_token():
    """Generates the token that follows CACHED tokens in the caches."""
    net = Transformer().cuda().half().eval()
    shape = (4, 4, int(os.environ["CACHED"]), 64)
    caches = [[torch.empty(shape, dtype=torch.half, device="cuda") for _ in range(2)] for _ in net.blocks]
    with torch.no_grad():
        net(torch.zeros(4, 1, dtype=torch.long, device="cuda"), caches)
    torch.cuda.synchronize()
    return {"cached": list(caches[0][0].shape)}


@program
def forever():
    """A training loop that fills the device, for tests that measure shares or kill it. Prints "begun" first."""
    net = Transformer().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    print("begun", flush=True)
    while True:
        tokens = torch.randint(0, 1000, (16, 256), device="cuda")
        net(tokens).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    name = sys.argv[1]
    print(json.dumps(PROGRAMS[name]()), flush=True)
    if "HOLD" in os.environ:
        sys.stdin.read()
    if name == "graphs":
        # PyTorch 2.14 aborts when its thread lets go of the Python objects of a backward pass while Python ends.
        os._exit(0)
