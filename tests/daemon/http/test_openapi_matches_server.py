"""The OpenAPI document and the server agree: requests are generated from the document and sent to the server."""

import http.client
import json
import re
import socket
from urllib.parse import urlencode

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core import NotSet
from schemathesis.generation import GenerationMode

from gpushare.daemon.http import openapi

DOCUMENT = openapi.document()
OPERATIONS = {found.ok().label: found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()}
STREAMS = {"GET /v1/watch"}
# Errors for what a schema cannot express: which values go together, and what number a text means.
VALUES = re.compile(
    "out of range|is for memory that is lent|not a whole number|is finer than|time.limit .* is below|"
    "are named: name as many|selector, column|cannot have|"
    "are elsewhere|is built in|too little|give .* to |printable|no number as its size|no pid of a container|"
    "cannot be read|cannot be edited|config.json|bundle|is too small|is no tenant: make it first|is below it$|"
    "is on level|another than its name says|what no other is guaranteed|has a uid of its own|is taken twice|"
    "is not a name: |"
    "idle_memory lend is for grants|leave idle_memory or in_turn out|none of it on loan: ask for one device"
)


def plain(value):
    """Turns integral floats into ints: in JSON Schema 1.0 is an integer."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def send(path, case):
    body = plain(case.body)
    data = None if isinstance(body, NotSet) else body if isinstance(body, bytes) else json.dumps(body).encode()
    query = f"?{urlencode(case.query, doseq=True)}" if case.query else ""
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(30)
    connection.sock.connect(str(path))
    try:
        connection.request(case.method, case.formatted_path + query, data)
        answer = connection.getresponse()
        stream = answer.status == 200 and f"{case.method} {case.path}" in STREAMS
        return answer.status, answer.getheader("Content-Type"), answer.readline() if stream else answer.read()
    finally:
        connection.close()


def check_answer(case, status, media, text):
    """Asserts that the answer is one of those in the document, with that shape."""
    answers = DOCUMENT["paths"][case.path][case.method.lower()]["responses"]
    assert str(status) in answers, (status, text)
    content = answers[str(status)].get("content", {})
    assert bool(content) == bool(text)
    if not content:
        return
    [(wanted, described)] = content.items()
    assert media.partition(";")[0] == wanted
    if wanted != "text/plain":
        schema = {**described["schema"], "components": DOCUMENT["components"]}
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def examples(label, *, slow):
    has_body = DOCUMENT["paths"][OPERATIONS[label].path][OPERATIONS[label].method.lower()].get("requestBody")
    return 25 if slow else 12 if has_body else 3


def generated(daemon, label, mode, check, slow):
    @settings(
        max_examples=examples(label, slow=slow),
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(OPERATIONS[label].as_strategy(generation_mode=mode))
    def run(case):
        status, media, text = send(daemon.layout.socket, case)
        check(case, status, media, text)

    run()


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "many"])
def slow(request):
    return request.param


@pytest.mark.drawn(16)
@pytest.mark.promise("document-is-true")
@pytest.mark.parametrize("label", OPERATIONS)
def test_what_the_document_allows_is_served_or_refused_by_its_values(daemon, label, slow):
    def check(case, status, media, text):
        check_answer(case, status, media, text)
        if status == 400:
            message = json.loads(text)["error"]["message"]
            assert VALUES.search(message), (message, case.body, case.query)

    generated(daemon, label, GenerationMode.POSITIVE, check, slow)


def asks(label):
    operation = DOCUMENT["paths"][OPERATIONS[label].path][OPERATIONS[label].method.lower()]
    return operation.get("requestBody") or operation.get("parameters")


@pytest.mark.drawn(12)
@pytest.mark.promise("document-is-true")
@pytest.mark.parametrize("label", [label for label in OPERATIONS if asks(label)])
def test_what_the_document_forbids_is_refused(daemon, label, slow):
    def check(case, status, media, text):
        if any(value in ([], {}) for value in (case.query or {}).values()):
            return  # an empty list or object leaves nothing in the request
        if case.path == "/v1/plan" and status == 200:
            # A request may be invalid in two ways, and admission reports what it finds first: a refusal (409) is a plan
            # here.
            assert not json.loads(text)["fits"]
            return
        assert 400 <= status < 500, (status, text, case.formatted_path, case.query, case.body)
        assert json.loads(text)["error"]["message"]

    generated(daemon, label, GenerationMode.NEGATIVE, check, slow)
