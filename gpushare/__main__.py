"""`python -m gpushare`: the same as the `gpushare` command."""

from gpushare.cli.main import entry

entry()
