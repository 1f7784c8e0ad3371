"""Made-up rows of the GPU benchmark, to be judged, with the names that its parts give theirs; no number in here was
measured anywhere."""

from typing import Any

from gpubench.parts import hidden, metering, overhead, policy, protection, reclaim, shares

Row = dict[str, Any]
Parts = dict[str, list[Row]]
FACTS = {
    "gpu": "NVIDIA MADE UP",
    "date": "2026-01-02",
    "started": "2026-01-02T03:04:05+0000",
    "machine": "No Processor, 16 cores, Linux 6.18",
    "driver": "580.1",
    "cuda": "13.0",
    "simulated": False,
    "command": "bench/gpu/run",
    "commit": "abc1234",
}


def row(name: str, value: float | None, unit: str = "", spread: float | None = None, **more: Any) -> Row:
    """`spread`: lowest and highest are so far from the median."""
    low, high, n = (None, None, None) if spread is None or value is None else (value - spread, value + spread, 5)
    return {"name": name, "value": value, "unit": unit, "low": low, "high": high, "n": n, "against": "",
            "text": "", "values": {}, **more}  # fmt: skip


def compared(name: str, unit: str, **values: float) -> Row:
    text = ", ".join(f"{key} {value:g}" for key, value in values.items())
    return row(name, None, unit, text=f"{text} {unit}", values=values)


def _pair(first: str, second: str) -> list[Row]:
    name, bound = f"{first} + {second}", [first, second].count("eager")
    sums = {
        0: {"free": 96, "drain": 97, "overlap": 98, "together": 96},
        1: {"free": 140, "drain": 100, "overlap": 101, "together": 139},
        2: {"free": 180, "drain": 100, "overlap": 100, "together": 185},
    }[bound]
    rows = [compared(f"{name}: throughput of both, summed", "% of alone", **sums)]
    for side, kind in enumerate((first, second)):
        label = f"{name}: {kind}{'' if first != second else f' #{side + 1}'}"
        half = {policy: total / 2 for policy, total in sums.items()}
        rows.append(compared(f"{label} throughput", "% of alone", **half))
        rows.append(
            compared(f"{label} event spans", "times alone (median)", free=2.0, drain=1.0, overlap=1.1, together=2)
        )
    return rows


def _wakes(kind: str) -> list[Row]:
    full = {"free": 4.0, "drain": 9.5, "overlap": 1.5, "together": 4.1}
    return [
        compared(f"wake to the end of the first kernel beside {kind}, {quantile}", "ms", **full)
        for quantile in ("p50", "p99")
    ]


def _stalls() -> list[Row]:
    name = "6 ms of kernels behind a wait-value, a {} gate of 2 ms"
    rows = [
        row(name.format("hard"), None, text="hung in 5 of 5 runs", values={"hung": 5, "runs": 5}),
        row(name.format("soft"), 11.2, "ms", 0.3, values={"hung": 0, "runs": 5}),
    ]
    for label, times in (
        ("a kernel that spins on every multiprocessor", (2100, 2300, 4000)),
        ("a stream blocked in wait-value", (31, 36, 90)),
    ):
        for quantile, alone, us in zip(("p50", "p99", "max"), (30, 35, 80), times, strict=True):
            values = {"alone_us": alone, "other_s": 11.0}
            rows.append(
                row(f"a 20 us kernel beside {label}, {quantile}", us, "us", against=f"alone {alone} us", values=values)
            )
    return rows


def _hidden() -> list[Row]:
    rule = {"processors": 132, "threads": 2048, "local_bytes": 16384, "stack_bytes": 1024}
    steps = {"context": 500, "module": 2, "pool 1MiB": 32, "alloc 4KiB": 2}
    return [
        *(row(hidden.LABELS[step], mib, "MiB", 0.0) for step, mib in steps.items()),
        row(hidden.LABELS["bigstack"], 4224.0, "MiB", 2.0, values=rule),
        row("all steps together: cuMemGetInfo beyond NVML's use of the device", 0.0, "MiB", 0.0),
        row("all steps together: NVML, of the process beyond NVML's use of the device", -120.0, "MiB", 4.0),
    ]


def _shares() -> list[Row]:
    return [
        made
        for work in shares.WORK
        for split in (f"{first // 10}/{second // 10}" for first, second in shares.SPLITS)
        for made in (
            row(f"{work}, {split}, gpushare: share error over 1 s", 0.9, "points", 0.8, against="first got 24.9 %"),
            row(f"{work}, {split}, gpushare: share error over 10 s", 0.3, "points", 0.1, against="first got 24.9 %"),
            row(f"{work}, {split}, gpushare: work of both", 98.5, "% of exclusive", against="the driver's own slicing"),
        )
    ]


def _product() -> Parts:
    wake = "owner's wake to the end of its first kernel beside {}, {}"
    return {
        "clients": [row("clients caught by gpushare", 12, "of 12", against="nvidia-smi is one of them")],
        "metering": [
            row(f"{name}: busy time against CUDA events", 0.4, "% off", 0.2)
            for name, unit in metering.WORK.items()
            if not unit.gap_us
        ],
        "overhead": [
            *(
                row(f"{name}, gpushare", 0.2, "% fewer", 0.4, values={"bare_us": unit.kernel_us + 0.4})
                for name, (_, unit) in overhead.LAUNCHES.items()
            ),
            row("20 us kernels, two programs together, gpushare", 7.0, "% fewer", 0.4),
        ],
        "frameworks": [row(f"{name}, gpushare", 0.1, "% fewer steps", 0.3) for name in overhead.TORCH.values()],
        "reclaim": [
            compared(wake.format(name, quantile), "ms", bare=9.0, gpushare=2.0)
            for name in reclaim.BORROWERS
            for quantile in ("p50", "p99")
        ],
        "protection": [
            compared(f"inference beside {name}, p99", "ms", bare=9.0, gpushare=2.5)
            for name in (*protection.TRAINING, "PyTorch training")
        ],
        "shares": _shares(),
    }


def parts() -> Parts:
    """In which every claim holds and every target is met."""
    pairs = [(first.name, second.name) for first, second in policy.PAIRS]
    copies = [
        row("copies beside another's compute, bare", 50.0, "GB/s", 0.5, values={"alone": 51.0}),
        row("compute beside another's copies, bare", 97.0, "%", 0.5),
    ]
    return {
        "policy-1": [one for pair in pairs[:5] for one in _pair(*pair)] + _wakes("decode") + _wakes("eager"),
        "policy-2": [one for pair in pairs[5:] for one in _pair(*pair)] + _wakes("gemm") + _wakes("long"),
        "stalls": _stalls(),
        "copies": copies,
        "hidden": _hidden(),
        **_product(),
    }


def document(found: Parts | None = None, **facts: Any) -> dict[str, Any]:
    entries = [
        {"part": name, "state": "ok", "reason": "", "seconds": 1.0, "rows": rows, "skipped": [], "broken": []}
        for name, rows in (parts() if found is None else found).items()
    ]
    return {"runs": [{**FACTS, **facts, "parts": entries}]}
