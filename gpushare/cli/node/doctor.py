"""gpushare doctor."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare.cli.command import Command, add_common, client, print_json, say
from gpushare.cli.look import render
from gpushare.cli.parser import Parser

if TYPE_CHECKING:
    from gpushare.client import Client
    from gpushare.doctor.finding import Finding

_CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))


def _degraded(tenants: list[Any]) -> "Iterator[Finding]":
    from gpushare.doctor.node import DEGRADED

    for tenant in tenants:
        if tenant["degraded"]:
            yield DEGRADED(name=tenant["name"], how=render.degraded(tenant))


def _look(daemon: "Client") -> "Iterator[Finding]":
    from gpushare.doctor import audited, cdi, containers, engines, host_pool, installed, machine, node, remote
    from gpushare.paths import DEFAULT_SOCKET, Layout

    yield from machine.look()
    yield from installed.look()
    yield from engines.look()
    yield from node.group(daemon.path)
    answers, findings = node.query(daemon)
    yield from findings
    if "host_pool" in answers.node:
        yield from host_pool.look(answers.node["host_pool"])
    yield machine.pages(Path(answers.node["grants_dir"]) if answers.node else Layout.of().grants)
    yield from _degraded(answers.tenants)
    living = None if answers.grants is None else {grant["id"] for grant in answers.grants}
    yield from remote.look(daemon if answers.node else None)
    if daemon.path == DEFAULT_SOCKET:  # for other daemons, only their answers can be examined
        yield from node.leftovers(Layout.of(), answers)
        yield from cdi.look(list(_CDI), living)
        yield from containers.without_share(answers.grants)
    if answers.grants:
        yield from containers.unjoined(daemon, answers.grants)
    if answers.grants is not None:
        yield from audited.lasting(daemon)


class DoctorCommand(Command):
    """check this node: what is missing or wrong, and how to fix it

    Checks the machine, the installation, the engines, the daemon and what runs; changes nothing. Root sees more. Each
    line is ok, note (works without it), wrong or missing. Exit status 1 if anything is wrong or missing.
    """

    examples = (
        ("gpushare doctor", "each check, and how to fix what is wrong"),
        ("sudo gpushare doctor --json", "all findings as JSON"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        findings = list(_look(client(args)))
        healthy = not any(finding.is_fault for finding in findings)
        if args.json:
            from dataclasses import asdict

            print_json({"healthy": healthy, "findings": [asdict(finding) for finding in findings]})
            return 0 if healthy else 1
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            say(f"{finding.level:8} {finding.what:{width}}  {finding.found}")
            if finding.mend:
                say(f"{'':8} {'':{width}}  -> {finding.mend}")
        return 0 if healthy else 1
