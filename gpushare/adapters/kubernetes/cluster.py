"""The API server, through Kubernetes' official client. Objects are the API's JSON, not the client's models, which drop
unknown fields."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from gpushare.adapters.kubernetes import DRIVER
from gpushare.adapters.kubernetes.slices import Json, slice_name
from gpushare.errors import FailedError, NotFoundError, UnreachableError, UsageError

log = logging.getLogger(__name__)

_SECONDS = (5, 20)  # timeouts for connecting and for the answer
WATCH_SECONDS = 300
_NOT_FOUND, _CONFLICT = 404, 409


class _ConflictError(FailedError):
    """The object was changed by another writer since it was read."""


class Cluster:
    """Every call raises UnreachableError if no API server answers, and FailedError with its message if it refuses."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """`kubeconfig`: None in a pod, to use its service account. Raises UsageError if it cannot be used."""
        try:
            if kubeconfig is None:
                config.load_incluster_config()
            else:
                config.load_kube_config(str(kubeconfig))
        except config.ConfigException as error:
            raise UsageError(f"no way to the API server: {error}: give --kubeconfig, or run in a pod") from None
        settings = client.Configuration.get_default_copy()
        # Callers retry; the client's own four attempts would take longer than kubelet waits.
        settings.retries = False
        api = client.ApiClient(settings)
        self._resources, self._core = client.ResourceV1Api(api), client.CoreV1Api(api)

    def claim(self, namespace: str, name: str) -> Json:
        """Returns a ResourceClaim. Raises NotFoundError."""
        return self._call(self._resources.read_namespaced_resource_claim, name, namespace)

    def put_claim_status(self, claim: Json) -> bool:
        """Replaces the status of the ResourceClaim; False if the claim was changed since it was read."""
        metadata = claim["metadata"]
        try:
            self._call(
                self._resources.replace_namespaced_resource_claim_status,
                metadata["name"],
                metadata["namespace"],
                claim,
                field_manager=DRIVER,
            )
        except _ConflictError:
            return False
        return True

    def pods(self, node: str) -> list[Json]:
        """Returns a node's pods, including those that have ended."""
        selector = f"spec.nodeName={node}"
        found: list[Json] = self._call(self._core.list_pod_for_all_namespaces, field_selector=selector)["items"]
        return found

    def node_uid(self, name: str) -> str:
        """Returns the Node's UID. Raises NotFoundError."""
        return str(self._call(self._core.read_node, name)["metadata"]["uid"])

    def slice(self, node: str) -> Json | None:
        """Returns the node's ResourceSlice; None if there is none."""
        found = self._call(self._resources.list_resource_slice, field_selector=_slices_of(node))["items"]
        return next((one for one in found if one["metadata"]["name"] == slice_name(node)), None)

    def put_slice(self, body: Json) -> Json:
        """Creates the slice; or replaces it if `body` has a `resourceVersion`."""
        if body["metadata"].get("resourceVersion"):
            return self._call(self._resources.replace_resource_slice, body["metadata"]["name"], body)
        return self._call(self._resources.create_resource_slice, body)

    def slice_changes(self, node: str) -> Iterator[str]:
        """Watches a node's ResourceSlice and yields ADDED, MODIFIED or DELETED. Ends after WATCH_SECONDS, since the API
        server does not report that it has dropped a watcher."""
        try:
            answer = self._resources.list_resource_slice(
                field_selector=_slices_of(node),
                watch=True,
                timeout_seconds=WATCH_SECONDS,
                _preload_content=False,
                _request_timeout=(_SECONDS[0], WATCH_SECONDS + _SECONDS[1]),
            )
            rest = b""
            for chunk in answer.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (str(json.loads(line)["type"]) for line in lines if line)
        except client.ApiException as error:
            raise _refused(error) from None
        except (HTTPError, OSError, ValueError, KeyError) as error:
            raise UnreachableError(f"the API server's watch ended: {error}") from None

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Json:
        try:
            answer = method(*args, **options, _preload_content=False, _request_timeout=_SECONDS)
            text = answer.data
        except client.ApiException as error:
            raise _refused(error) from None
        except (HTTPError, OSError) as error:
            raise UnreachableError(f"the API server does not answer: {error}") from None
        if answer.status >= 400:
            raise _refused(client.ApiException(status=answer.status, reason=answer.reason))
        return dict(json.loads(text))


def _slices_of(node: str) -> str:
    """Returns the field selector of a node's slices. With a kubelet's rights a slice can be listed only by node; access
    by name is forbidden while it does not exist."""
    return f"spec.nodeName={node},spec.driver={DRIVER}"


def _refused(error: client.ApiException) -> Exception:
    try:
        why = json.loads(error.body or "")["message"]
    except (TypeError, ValueError, KeyError):
        why = error.reason
    if error.status == _NOT_FOUND:
        return NotFoundError(f"the API server: {why}")
    if error.status == _CONFLICT:
        return _ConflictError(f"the API server: {why}: it was changed meanwhile, and is read again")
    if error.status >= 500 or error.status == 429:
        return UnreachableError(f"the API server: {why}")
    return FailedError(f"the API server: {why}")
