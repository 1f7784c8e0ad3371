"""The OpenAPI 3.1 document, made from the wire types and the table of routes that the server itself uses."""

import functools
import re
from typing import Any

import msgspec

from gpushare import __version__
from gpushare.api import types
from gpushare.daemon.http.route import Route
from gpushare.daemon.http.routes import ROUTES
from gpushare.errors import FailedError, ForbiddenError, GpushareError, UnreachableError, UsageError

_TEMPLATE = "#/components/schemas/{name}"
_JSON = "application/json"


def _content(schema: dict[str, Any], media: str = _JSON) -> dict[str, Any]:
    return {"content": {media: {"schema": schema}}}


def _refusals(route: Route) -> set[int]:
    always: list[type[GpushareError]] = [UsageError, FailedError, UnreachableError]
    if route.root:
        always.append(ForbiddenError)
    return {kind.http_status for kind in (*always, *route.refusals)}


def _kinds(kind: Any) -> tuple[Any, ...]:
    return kind if isinstance(kind, tuple) else (kind,)


def _schema(kind: Any, schemas: list[dict[str, Any]], used: list[Any]) -> dict[str, Any]:
    found = [schemas[used.index(one)] for one in _kinds(kind)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _operation(route: Route, schemas: list[dict[str, Any]], used: list[Any]) -> dict[str, Any]:
    ok: dict[str, Any] = {"description": "done"}
    if route.status == 204:
        pass  # no content
    elif route.answer is not None:
        ok |= _content(_schema(route.answer, schemas, used), route.media)
    elif route.media != _JSON:
        ok |= _content({"type": "string"}, route.media)
    else:
        ok |= _content({"type": "object"})
    error = {"description": "why not, in one line", **_content(schemas[used.index(types.Error)])}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": route.name}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": name in route.required, "schema": schema}
        for name, schema in route.query.items()
    ]
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.summary,
        "responses": {
            str(route.status): ok,
            **({str(route.repeated): ok | {"description": "had been done before"}} if route.repeated else {}),
            **{str(status): error for status in sorted(_refusals(route))},
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content(_schema(route.body, schemas, used))}
    return operation


@functools.cache
def document() -> dict[str, Any]:
    """The OpenAPI 3 document of all routes, made from routes.py and the wire types."""
    used: list[Any] = [types.Error]
    for route in ROUTES:
        kinds = (*_kinds(route.body), *_kinds(route.answer))
        used += [kind for kind in kinds if kind is not None and kind not in used]
    schemas, components = msgspec.json.schema_components(used, ref_template=_TEMPLATE)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, list(schemas), used)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpushare node API",
            "version": __version__,
            "description": "HTTP over the node's unix socket. The socket's peer credentials identify the caller."
            " Integers are written without a fraction: 1.0 is refused. A request body needs a Content-Length.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }
