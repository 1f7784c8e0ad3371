"""Every error that a user can see, and the only place that defines what each means to a shell and over HTTP.

                                                                                        exit  HTTP  code
GpushareError
├── UsageError            what was asked makes no sense: malformed, an unknown name        2   400  usage
│   ├── NotFoundError     there is no such grant, device or tenant                         2   404  not_found
│   ├── MethodError       there is such a path, but not that method                        2   405  method
│   └── GoneError         it has ended, or the record does not reach back that far         2   410  gone
├── RefusedError          it makes sense; policy or capacity says no                       3   409  refused
│   ├── ForbiddenError    this user may not do that                                        3   403  forbidden
│   ├── LaterError        the same request will be accepted soon: repeat it; one of:       3   409
│   │   ├── OnLoanError       others have it on loan, and are asked to give it back        3   409  on_loan
│   │   └── MakingRoomError   memory that nobody uses is moved away for it                 3   409  making_room
│   └── CannotMoveError   the memory of a grant cannot leave its device now                3   409  cannot_move
├── UnreachableError      no daemon, or not one to be trusted                              4   503  unreachable
└── FailedError           gpushare, the kernel or the driver failed                        1   500  failed

`cli/main.py` turns them into exit statuses, `daemon/http/requests.py` into answers, `client.py` answers into errors.
`gpushare run` keeps its command's statuses apart from ours (`cli/grants/run.py`).

A message is one line: what happened, why, what to do.
"""


class GpushareError(Exception):
    """Base of all. `exit_code` is the CLI's status, `http_status` the node API's, `code` the name in JSON."""

    exit_code = 1
    http_status = 500
    code = "failed"


class UsageError(GpushareError):
    """The request is malformed, or names something that cannot exist."""

    exit_code = 2
    http_status = 400
    code = "usage"


class NotFoundError(UsageError):
    """No such grant, device, tenant or call."""

    http_status = 404
    code = "not_found"


class MethodError(UsageError):
    """The path has no such method."""

    http_status = 405
    code = "method"


class GoneError(UsageError):
    """The daemon no longer has this history, or it is from an earlier run of the daemon: list again. For a part of a
    gang: it was aborted or has expired."""

    http_status = 410
    code = "gone"


class RefusedError(GpushareError):
    """Policy or capacity says no; another request, or the same one later, may be accepted."""

    exit_code = 3
    http_status = 409
    code = "refused"


class ForbiddenError(RefusedError):
    """This user may not do that."""

    http_status = 403
    code = "forbidden"


class LaterError(RefusedError):
    """What was asked for will be there soon: repeat the request. Its kinds have the codes."""


class OnLoanError(LaterError):
    """The memory is guaranteed to the request, but others have it on loan and were asked to give it back: repeat the
    request until they have."""

    code = "on_loan"


class MakingRoomError(LaterError):
    """Memory of grants that do not use theirs is being moved to host memory for the request: repeat it until that is
    done. `estimate_seconds`: in about how long."""

    code = "making_room"

    def __init__(self, message: str, estimate_seconds: float | None = None) -> None:
        super().__init__(message)
        self.estimate_seconds = estimate_seconds


class CannotMoveError(RefusedError):
    """The memory of a grant cannot be moved to host memory now; the message has the reason."""

    code = "cannot_move"


class UnreachableError(GpushareError):
    """No daemon answers, or what answers cannot be trusted."""

    exit_code = 4
    http_status = 503
    code = "unreachable"


class FailedError(GpushareError):
    """Gpushare, the kernel or the driver failed; the request was valid."""


_KINDS = (
    UsageError,
    NotFoundError,
    MethodError,
    GoneError,
    RefusedError,
    ForbiddenError,
    OnLoanError,
    MakingRoomError,
    CannotMoveError,
    UnreachableError,
    FailedError,
)
BY_CODE: dict[str, type[GpushareError]] = {kind.code: kind for kind in _KINDS}
"""For clients: error class by the `code` of an answer."""
