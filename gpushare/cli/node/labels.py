"""gpushare labels"""

import argparse
import re
from collections import Counter
from typing import Any

from gpushare.cli.command import Command, add_socket, client, print_json
from gpushare.cli.parser import Parser

PREFIX = "gpushare.dev/gpu."
_VALUE_MAX = 63
_MIB = 1 << 20
_SHARDS = 100


class LabelsCommand(Command):
    """describe this node's devices for schedulers

    Prints labels for Kubernetes' Node Feature Discovery, JSON, or lines of Slurm's gres.conf.
    """

    examples = (
        ("gpushare labels", "labels of this node, one NAME=VALUE per line"),
        ("gpushare labels --format gres", "for /etc/slurm/gres.conf"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument(
            "--format",
            choices=("nfd", "json", "gres"),
            default="nfd",
            help="nfd: a file for /etc/kubernetes/node-feature-discovery/features.d; gres: gres.conf (default nfd)",
        )
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        devices = client(args).devices()
        if args.format == "json":
            print_json({"labels": labels(devices), "devices": [facts(device) for device in devices]})
        elif args.format == "gres":
            from gpushare.adapters.slurm import conf

            files = [f"/dev/nvidia{device['minor']}" for device in devices]
            print(conf.gres(devices, files, _SHARDS), end="")
        else:
            print("".join(f"{name}={value}\n" for name, value in labels(devices).items()), end="")
        return 0


def facts(device: Any) -> dict[str, Any]:
    """Returns the attributes that a selector can compare, by name."""
    known = {name: device[name] for name in ("index", "minor", "backend", "pci_bus_id")}
    return {
        "uuid": device["id"],
        "product": device["name"],
        "memory": device["capacity"]["memory"],
        **known,
        **device["attributes"],
        **({"links": device["links"]} if device.get("links") else {}),
    }


def labels(devices: list[Any]) -> dict[str, str]:
    """Returns the node's labels. An attribute that differs between devices gives none: a pod that needs it claims a
    device."""
    found = {f"{PREFIX}count": str(len(devices))}
    names = {
        "product": "product",
        "architecture": "architecture",
        "cuda_compute_capability": "compute-capability",
        "driver_version": "driver-version",
        "cuda_driver_version": "cuda-version",
        "backend": "backend",
    }
    rows = [facts(device) for device in devices]
    for name, word in names.items():
        values = {str(row[name]) for row in rows if row.get(name)}
        if len(values) == 1:
            found[f"{PREFIX}{word}"] = label_value(values.pop())
    if rows:
        found[f"{PREFIX}memory-mib"] = str(min(row["memory"] for row in rows) // _MIB)
    if domains := Counter(row["nvlink_domain"] for row in rows if row.get("nvlink_domain")):
        found[f"{PREFIX}nvlink-domain-size"] = str(max(domains.values()))
    return found


def label_value(text: str) -> str:
    """Returns the text as a Kubernetes label value: letters, digits, `-`, `_` and `.`, at most 63."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_VALUE_MAX].strip("-._")
