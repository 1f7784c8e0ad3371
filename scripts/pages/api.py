"""docs/reference/api.md: the node API's description as tables."""

import json
from http import HTTPStatus
from typing import Any

from text import anchor, escaped, made_from, paragraphs, table, wrapped

from gpushare.daemon.http import openapi

HEAD = """# Node API reference

Every call, type and error of the [node API](node-api.md); that page explains the API with
examples. A daemon returns the same in machine-readable form at `GET /openapi.json` (OpenAPI 3.1).
Sizes are in bytes, times in nanoseconds, shares in milli of a device. A request with an unknown
field is refused; clients should ignore unknown fields in answers. Only root may make calls marked
*(root)*.

"""
_REF = "#/components/schemas/"
Schema = dict[str, Any]


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if high is None or high >= (1 << 53):
        return f", {low} or more" if low else ""
    return f", {low} to {high}" if low is not None else f", {high} at most"


def kind(schema: Schema) -> str:
    """A schema in words."""
    if ref := schema.get("$ref"):
        return _link(ref.removeprefix(_REF))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        shown = [kind(one) for one in options]
        return " or ".join(dict.fromkeys(shown))
    if "enum" in schema:
        return ", ".join("empty" if value == "" else f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind(schema['items'])}" if schema.get("items") else "list"
    if schema.get("type") == "object":
        more = schema.get("additionalProperties")
        return f"object of {kind(more)}" if isinstance(more, dict) and more else "object"
    words = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
    return words[schema["type"]] + _bounds(schema) if "type" in schema else "any"


def _default(schema: Schema, required: bool) -> str:
    if required:
        return "never"
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else ""


def _body(content: dict[str, Any]) -> str:
    return ", ".join(
        kind(one["schema"]) if media == "application/json" else f"`{media}`" for media, one in content.items()
    )


def _call(path: str, method: str, call: Schema) -> str:
    text = f"### {method.upper()} {path}\n\n{wrapped(escaped(call['summary']) + '.')}\n"
    if asked := call.get("requestBody"):
        text += wrapped(f"Body: {_body(asked['content'])}.") + "\n"
    rows = [
        (f"`{one['name']}`", one["in"], kind(one["schema"]), "yes" if one["required"] else "no")
        for one in call.get("parameters", ())
    ]
    if rows:
        text += table(("parameter", "in", "value", "required"), rows)
    answers, errors = [], []
    for status, answer in call["responses"].items():
        content = answer.get("content", {})
        if int(status) < HTTPStatus.BAD_REQUEST:
            answers.append(f"{status} {_body(content) or 'without a body'}")
        else:
            errors.append(status)
    return text + wrapped(f"Answers: {'; '.join(answers)}. Errors: {', '.join(errors)}.") + "\n"


def _type(name: str, schema: Schema) -> str:
    text = f"### {name}\n\n"
    text += "".join(wrapped(escaped(part)) + "\n" for part in paragraphs(schema.get("description", "")))
    if "properties" not in schema:
        return text + wrapped(kind({**schema, "description": ""})) + "\n"
    required = schema.get("required", ())
    rows = [(f"`{field}`", kind(one), _default(one, field in required)) for field, one in schema["properties"].items()]
    return text + table(("field", "value", "left out, it is"), rows) if rows else text + "No fields.\n\n"


def page() -> str:
    """The whole page."""
    document = openapi.document()
    text = made_from("gpushare/daemon/http/routes.py and gpushare/api") + HEAD + "## Calls\n\n"
    calls = [(path, method, call) for path, methods in document["paths"].items() for method, call in methods.items()]
    rows = [
        (f"[{method.upper()} {path}](#{anchor(f'{method} {path}')})", escaped(call["summary"]))
        for path, method, call in calls
    ]
    text += table(("call", "what it does"), rows)
    text += "".join(_call(*one) for one in calls)
    text += "## Types\n\n"
    text += "".join(_type(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    return text.rstrip("\n") + "\n"
