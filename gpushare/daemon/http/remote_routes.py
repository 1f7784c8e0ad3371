"""The calls of the node API about remote grants, for the table in routes.py."""

from gpushare.api import remote as types
from gpushare.daemon.http.route import NUMBER, TEXT, Route
from gpushare.errors import ForbiddenError, NotFoundError, RefusedError

ROUTES = (
    Route(
        "POST",
        "/v1/grants/{id}/attachments",
        "attach",
        "Let programs of another machine use a grant, over a carrier (its owner, or root)",
        body=types.AttachRequest,
        answer=types.Attached,
        status=201,
        refusals=(NotFoundError, ForbiddenError, RefusedError),
    ),
    Route(
        "DELETE",
        "/v1/grants/{id}/attachments/{attachment}",
        "detach",
        "End the use of a grant by another machine; with the last one its server ends (its owner, or root)",
        status=204,
        refusals=(NotFoundError, ForbiddenError),
    ),
    Route(
        "GET",
        "/v1/remote",
        "remote",
        "Relay, carriers and attachments of this node, the latest ended ones included; since (ns): those that ended"
        " since then; grant: only its own",
        answer=types.Remote,
        query={"since": NUMBER, "grant": TEXT},
    ),
)
