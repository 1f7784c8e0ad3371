"""gpushare quota ..."""

import argparse
import json
import sys
from pathlib import Path

from gpushare.cli.command import add_json, print_json, table
from gpushare.errors import UsageError


class QuotaCommand:
    """entitlements for a given state; needs no daemon"""

    name = "quota"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(metavar="VERB", required=True)
        solve = verbs.add_parser(
            "solve", help='who gets what: {"C": 8000, "tenants": [{"name","g","w","tier","limit","demand"}]}'
        )
        solve.add_argument("state", metavar="STATE.json", help="- for standard input")
        add_json(solve)
        solve.set_defaults(verb=self._solve)

    def run(self, args: argparse.Namespace) -> int:
        status: int = args.verb(args)
        return status

    def _solve(self, args: argparse.Namespace) -> int:
        from gpushare.policy.entitlement import solve

        try:
            text = sys.stdin.read() if args.state == "-" else Path(args.state).read_text()
            state = json.loads(text)
        except OSError as error:
            raise UsageError(f"{args.state}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{args.state} is not JSON: {error}") from None
        result = solve(state)
        if args.json:
            print_json(result)
            return 0
        entitlement = result["entitlement"]
        assert isinstance(entitlement, dict)
        table(("TENANT", "MILLI"), [[name, milli] for name, milli in entitlement.items()])
        if result["degraded"]:
            print("degraded: there is less than what is guaranteed and wanted")
        return 0
