from gpushare.cli.main import entry

entry()
