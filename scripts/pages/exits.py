"""docs/reference/exit-status.md: what each error means to a shell and over HTTP."""

import inspect

from text import made_from, table

from gpushare.errors import BY_CODE

HEAD = """# Exit status and errors

The CLI exits with 0 on success; otherwise one line on stderr says what happened, why, and what to
do, and the exit status gives the kind of error. Over HTTP the kind is the status of the answer,
whose body is `{"error": {"code", "message"}}`.

"""
TAIL = """`gpushare run` exits with its command's status, or with 125 if gpushare failed or refused before the
command ran. `gpushare doctor` exits with 1 if anything is wrong or missing. After an interrupt
(Ctrl-C) the status is 130, or 0 for what runs until it is interrupted: `daemon`, `dashboard`,
`adapter`, `top` on a whole screen and `remote attach`.
"""


def page() -> str:
    """The whole page."""
    rows = [("0", "200, 201, 204", "", "done")]
    kinds = sorted(BY_CODE.values(), key=lambda kind: (kind.exit_code, kind.http_status))
    rows += [
        (str(kind.exit_code), str(kind.http_status), f"`{kind.code}`", inspect.getdoc(kind) or "") for kind in kinds
    ]
    return made_from("gpushare/errors.py") + HEAD + table(("exit status", "HTTP", "code", "what it means"), rows) + TAIL
