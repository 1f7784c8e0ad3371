"""docs/reference/exit-status.md: what each error means to a shell and over HTTP."""

import inspect

from text import made_from, table

from gpushare.errors import BY_CODE

HEAD = """# Exit status and errors

The CLI ends with 0 when all is well; else one line on stderr says what happened, why, and what to do, and the
status says which kind it is. Over HTTP the same is the status of the answer, with `{"error": {"code",
"message"}}` as its body.

"""
TAIL = """`gpushare run` ends with its command's own status, or with 125 when gpushare failed or refused before the
command ran. `gpushare doctor` ends with 1 where anything is wrong or missing. An interrupt (Ctrl-C) is 130.
"""


def page() -> str:
    """The whole page."""
    rows = [("0", "200, 201, 204", "", "done")]
    kinds = sorted(BY_CODE.values(), key=lambda kind: (kind.exit_code, kind.http_status))
    rows += [
        (str(kind.exit_code), str(kind.http_status), f"`{kind.code}`", inspect.getdoc(kind) or "") for kind in kinds
    ]
    return made_from("gpushare/errors.py") + HEAD + table(("exit status", "HTTP", "code", "what it means"), rows) + TAIL
