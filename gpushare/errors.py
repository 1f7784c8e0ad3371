"""Every exception gpushare raises, and the one place that says what each means to a shell and over HTTP.

GpushareError
├── UsageError            what was asked makes no sense (malformed, unknown name)    exit 2   400
│   └── NotFoundError     a grant, device or tenant that does not exist              exit 2   404
├── RefusedError          it makes sense, policy or capacity says no                 exit 3   409
│   └── ForbiddenError    this peer may not do that                                  exit 3   403
├── UnreachableError      no daemon, or not ours                                     exit 4   503
└── FailedError           we, the kernel or the driver failed                        exit 1   500

A message is one line: what happened, why, what to do.
"""


class GpushareError(Exception):
    """Base of all. `exit_code` is the CLI's status, `http_status` the node API's, `code` the name in JSON."""

    exit_code = 1
    http_status = 500
    code = "failed"


class UsageError(GpushareError):
    exit_code = 2
    http_status = 400
    code = "usage"


class NotFoundError(UsageError):
    http_status = 404
    code = "not_found"


class RefusedError(GpushareError):
    exit_code = 3
    http_status = 409
    code = "refused"


class ForbiddenError(RefusedError):
    http_status = 403
    code = "forbidden"


class UnreachableError(GpushareError):
    exit_code = 4
    http_status = 503
    code = "unreachable"


class FailedError(GpushareError):
    pass


BY_CODE: dict[str, type[GpushareError]] = {
    kind.code: kind for kind in (UsageError, NotFoundError, RefusedError, ForbiddenError, UnreachableError, FailedError)
}
