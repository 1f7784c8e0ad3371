"""The node API for programs: synchronous, standard library only, one connection per call.

Answers are the JSON objects of gpushare.api.types as plain dicts, so that importing this costs a CLI nothing.
"""

import grp
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from gpushare.errors import BY_CODE, FailedError, GpushareError, OnLoanError, UnreachableError, UsageError
from gpushare.paths import client_socket

if TYPE_CHECKING:
    from http.client import HTTPResponse

ANSWER_SECONDS = 30.0
ASK_AGAIN_SECONDS = 0.1


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def check_socket(path: Path) -> None:
    """Raises UnreachableError unless the socket is root's or this user's: others could impersonate the daemon."""
    try:
        found = path.stat()
    except PermissionError:
        raise UnreachableError(f"{path}: permission denied: ask an administrator for access to its directory") from None
    except OSError:
        raise UnreachableError(
            f"no daemon at {path}: start one with `gpushare daemon`, or name its socket (--socket, GPUSHARE_SOCKET)"
        ) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise UnreachableError(f"{path} is not a socket: name the daemon's socket with --socket or GPUSHARE_SOCKET")
    if found.st_uid not in (0, os.geteuid()):
        raise UnreachableError(f"{path} belongs to uid {found.st_uid}, neither root nor you: not talking to it")


class Client:
    """One daemon's node API. Every call raises the GpushareError that the daemon answered, or UnreachableError."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = client_socket(os.fspath(path) if path is not None else None)

    def call(self, method: str, target: str, body: Any = None, *, timeout: float | None = ANSWER_SECONDS) -> Any:
        """The decoded JSON answer, None for an empty one."""
        response = self._open(method, target, body, timeout)
        try:
            text = self._guarded(response.read)
        finally:
            response.close()
        return json.loads(text) if text else None

    def text(self, target: str) -> str:
        """A body that is not JSON, as of /metrics."""
        response = self._open("GET", target, None, ANSWER_SECONDS)
        try:
            return str(self._guarded(response.read), "utf-8")
        finally:
            response.close()

    def lines(self, target: str, timeout: float | None = None) -> Iterator[Any]:
        """Decoded lines of an NDJSON stream, until it ends."""
        response = self._open("GET", target, None, timeout)
        try:
            while line := self._guarded(response.readline):
                yield json.loads(line)
        finally:
            response.close()

    def _guarded(self, read: Callable[[], bytes]) -> bytes:
        from gpushare.transport import ERRORS

        try:
            return read()
        except ERRORS as error:
            raise UnreachableError(f"the daemon at {self.path} went away ({_why(error)}): try again") from None

    def _open(self, method: str, target: str, body: Any, timeout: float | None) -> "HTTPResponse":
        from gpushare import transport

        check_socket(self.path)
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            response = transport.request(self.path, method, target, data, timeout)
        except transport.ERRORS as error:
            raise self._no_answer(error) from None
        if response.status >= 400:
            with response:
                raise _refusal(response.status, self._guarded(response.read))
        return response

    def _no_answer(self, error: Exception) -> UnreachableError:
        if isinstance(error, PermissionError):
            group = _group(self.path.stat().st_gid)
            return UnreachableError(
                f"{self.path}: permission denied: run as root"
                + ("" if group == "root" else f" or as a member of group {group}")
            )
        return UnreachableError(f"no daemon answers at {self.path} ({_why(error)}): start one with `gpushare daemon`")

    # The verbs that more than one caller uses.

    def version(self) -> Any:
        """A Version."""
        return self.call("GET", "/v1/version")

    def node(self) -> Any:
        """A Node."""
        return self.call("GET", "/v1/node")

    def devices(self) -> Any:
        """A list of Device."""
        return self.call("GET", "/v1/devices")["devices"]

    def tenants(self) -> Any:
        """A list of Tenant."""
        return self.call("GET", "/v1/tenants")["tenants"]

    def grants(self, *, ended: bool = False) -> Any:
        """A list of Grant; with `ended` also the latest that have ended."""
        return self.call("GET", "/v1/grants?ended=1" if ended else "/v1/grants")["grants"]

    def grant(self, grant_id: str) -> Any:
        """A Grant, also one that has ended. Raises NotFoundError."""
        return self.call("GET", f"/v1/grants/{quote(grant_id, safe='')}")

    def debug(self, grant_id: str) -> Any:
        """A GrantDebug: the grant's pages, and the last events of its processes."""
        return self.call("GET", f"/v1/grants/{quote(grant_id, safe='')}/debug")

    def create(self, *, wait_seconds: float = 0, **request: Any) -> Any:
        """Fields of GrantRequest; None is left out. `class_` stands for `class`. `wait_seconds`: how long to ask again
        for memory that others have on loan and are asked to give back.

        Raises OnLoanError where that is over, and RefusedError where it cannot be had.
        """
        deadline = time.monotonic() + wait_seconds
        target = f"/v1/grants?asker={secrets.token_hex(8)}" if wait_seconds else "/v1/grants"
        while True:
            try:
                return self.call("POST", target, _body(request))
            except OnLoanError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(ASK_AGAIN_SECONDS)

    def plan(self, **request: Any) -> Any:
        """A Plan of what `create` would do; changes nothing."""
        return self.call("POST", "/v1/plan", _body(request))

    def bind(self, grant_id: str, kind: str, **whose: int | None) -> Any:
        """A Binding, of this process (`process`) or for a `container`. `whose`: `pid`, `uid`, `gid` as in BindRequest.

        Raises RefusedError where the grant is in use.
        """
        body = _body({"kind": kind, **whose})
        return self.call("POST", f"/v1/grants/{quote(grant_id, safe='')}/bind", body)

    def resize(self, grant_id: str, **change: Any) -> Any:
        """The Grant after the change. Fields of GrantChange; None is left out. Raises RefusedError."""
        body = {name: value for name, value in change.items() if value is not None}
        return self.call("PATCH", f"/v1/grants/{quote(grant_id, safe='')}", body)

    def release(self, grant_id: str) -> Any:
        """Ends a grant and kills what runs in it. The Grant as it ended."""
        return self.call("DELETE", f"/v1/grants/{quote(grant_id, safe='')}")

    def set_tenant(self, name: str, policy: dict[str, Any]) -> Any:
        """Makes a tenant or replaces its whole policy (a TenantPolicy). The Tenant. For root only."""
        return self.call("PUT", f"/v1/tenants/{quote(name, safe='')}", policy)

    def remove_tenant(self, name: str, source: str = "") -> Any:
        """Raises RefusedError where it has grants, tenants below it, or another `source`. For root only."""
        query = f"?source={quote(source, safe='')}" if source else ""
        return self.call("DELETE", f"/v1/tenants/{quote(name, safe='')}{query}")

    def usage(self, **query: object) -> Any:
        """A Usage. `query`: as `GET /v1/usage` takes it; None is left out."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self.call("GET", f"/v1/usage?{urlencode(given)}")

    def usage_slots(self, **query: object) -> Any:
        """A UsageSlots. `query`: as `GET /v1/usage/slots` takes it; None is left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return self.call("GET", f"/v1/usage/slots?{urlencode(given)}")

    def drain(self, device: str, reason: str = "") -> Any:
        """The Device, which takes no new grants from now on. For root only. Raises NotFoundError."""
        return self.call("POST", "/v1/drain", {"device": device, "reason": reason})

    def undrain(self, device: str) -> Any:
        """The Device, which takes grants again. For root only. Raises NotFoundError."""
        return self.call("POST", "/v1/undrain", {"device": device})

    def sim_stats(self) -> Any:
        """The simulator's own books. Raises NotFoundError where the devices are real."""
        return self.call("GET", "/v1/sim/stats")

    def set_sim_lost(self, device: int, *, lost: bool) -> None:
        """Lets a simulated device, by its index, stop working or work again. For root only."""
        self.call("PUT", f"/v1/sim/devices/{device}", {"lost": lost})

    def watch(self, since: int | None = None, timeout: float | None = None) -> Iterator[Any]:
        """Events after number `since`, or from now on, without end. `timeout`: seconds to wait for the next line."""
        query = "" if since is None else f"?since={since}"
        return self.lines("/v1/watch" + query, timeout)


def _body(request: dict[str, Any]) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in request.items() if value is not None}


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _refusal(status: int, body: bytes) -> GpushareError:
    try:
        error = json.loads(body)["error"]
        known = BY_CODE.get(error["code"], UsageError if status < 500 else FailedError)
        return known(error["message"])
    except (ValueError, KeyError, TypeError):
        return FailedError(f"the daemon answered status {status} without a reason")
