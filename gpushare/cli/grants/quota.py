"""gpushare quota ..."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare.cli.command import Family, print_json
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Refuses an object with a duplicate name, which is ambiguous."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice in one object")
        found[name] = value
    return found


class QuotaCommand(Family):
    """compute what each tenant should get; needs no daemon"""

    examples = (("gpushare quota solve state.json", "what the tenants described in the file should get"),)

    def prepare_parser(self, parser: Parser) -> None:
        solve = parser.verb(
            "solve",
            self._solve,
            "print what each tenant should get as JSON: {entitlement: {NAME: thousandths of a device}, degraded}",
            ("gpushare quota solve state.json", "state from a file"),
            ("gpushare quota solve - < state.json", "state from stdin"),
        )
        solve.add_argument(
            "state",
            metavar="STATE.json",
            help='{"C": 8000, "k": 0, "tenants": [{"name", "parent", "g", "demand", "w", "tier", "limit", "usage"}]} in'
            " thousandths of a device; demand is of a tenant's own grants, entitlement includes all tenants below; a"
            " limit is optional, and one below g caps g too; usage decides ties, and with k above 0 heavy users borrow"
            " less (docs/guides/tenants.md); - is stdin",
        )
        solve.flag("--json", "accepted for uniformity: the output is always JSON")

    def _solve(self, args: argparse.Namespace) -> int:
        from gpushare.policy.quota.solve import solve

        try:
            data = sys.stdin.buffer.read() if args.state == "-" else Path(args.state).read_bytes()
            state = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
        except OSError as error:
            raise UsageError(f"{args.state}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{args.state} is not usable JSON: {error}") from None
        result = solve(state)
        print_json(result)
        return 0
