"""gen_calls.py OUT_DIR: writes both ends of the calls in calls.txt, from the driver's table of types.

carrier_ops.h     a number for each call
carrier_client.h  the functions that a program calls
carrier_server.h  what the server does for each of them
carrier_others.c  every other function of the driver, which is not supported, and the table for cuGetProcAddress
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "native" / "api"))
import table

HERE = Path(__file__).resolve().parent
PARAMETER = re.compile(r"\s*(const )?([\w ]+?)\s*(\**)\s*(\w+)\s*$")
CLIENT = "client.c"
DEFINED = re.compile(r"^CUresult (cu\w+)\(", re.M)


class Parameter(NamedTuple):
    """`way`: `in` by value, `struct` behind a pointer, `text`, `out` behind a pointer, `room` for a text, or its
    `length`."""

    type: str
    name: str
    way: str


def parameters(symbol: table.Symbol) -> list[Parameter]:
    found: list[Parameter] = []
    if symbol.parameters == "void":
        return found
    for text in symbol.parameters.split(","):
        match = PARAMETER.match(text)
        assert match, f"{symbol.name}: {text}"
        const, kind, stars, name = match.groups()
        if stars == "":
            way = "length" if found and found[-1].way == "room" else "in"
        else:
            assert stars == "*", f"{symbol.name}: {text}"
            assert kind != "void", f"{symbol.name}: {text}"
            way = {(True, True): "text", (True, False): "struct", (False, True): "room"}.get(
                (bool(const), kind == "char"), "out"
            )
        found.append(Parameter(kind, name, way))
    return found


def client(how: str, symbol: table.Symbol) -> str:
    head = f"static CUresult carrier_{symbol.name}" if how == "own" else f"CUresult {symbol.name}"
    lines = [f"{head}({symbol.parameters}) {{", "  struct call call;", f"  begin(&call, OP_{symbol.name});"]
    given = parameters(symbol)
    for i, one in enumerate(given):
        lines.append(
            {
                "in": f"  put(&call, &{one.name}, sizeof {one.name});",
                "length": f"  put(&call, &{one.name}, sizeof {one.name});",
                "struct": f"  put(&call, {one.name}, sizeof *{one.name});",
                "text": f"  put_text(&call, {one.name});",
                "out": f"  want(&call, {one.name}, sizeof *{one.name});",
                "room": f"  want(&call, {one.name}, (size_t){given[i + 1].name if one.way == 'room' else 0});",
            }[one.way]
        )
    ends = {"go": "go(&call)", "sync": "answer(&call)", "wait": "answer(&call)", "own": "answer(&call)"}
    return "\n".join([*lines, f"  return {ends[how]};", "}"])


def server(symbol: table.Symbol) -> str:
    declared, taken, called, given = [], [], [], []
    for one in parameters(symbol):
        name = one.name
        if one.way in ("in", "length", "struct"):
            declared.append(f"  {one.type} {name};")
            taken.append(f"  take(request, &{name}, sizeof {name});")
            called.append(f"&{name}" if one.way == "struct" else name)
        elif one.way == "text":
            declared.append(f"  const char *{name};")
            taken.append(f"  {name} = take_text(request);")
            called.append(name)
        else:
            room = one.way == "room"
            declared.append(f"  char {name}[TEXT_MAX] = {{0}};" if room else f"  {one.type} {name} = {{0}};")
            declared.append(f"  size_t wanted_{name};")
            taken.append(f"  wanted_{name} = take_wanted(request, sizeof {name});")
            called.append(f"wanted_{name} ? {name if room else f'&{name}'} : NULL")
            given.append(f"  give(reply, {'' if room else '&'}{name}, wanted_{name});")
    lengths = [one.name for one in parameters(symbol) if one.way == "length"]
    bad = " || ".join(["request->bad", *(f"{name} < 0 || {name} > TEXT_MAX" for name in lengths)])
    return "\n".join(
        [
            f"static CUresult serve_{symbol.name}(struct request *request, struct reply *reply) {{",
            *declared,
            *taken,
            f"  if ({bad})",
            "    return CUDA_ERROR_INVALID_VALUE;",
            f"  CUresult result = {symbol.name}({', '.join(called)});",
            *given,
            "  (void)reply;",
            "  return result;",
            "}",
        ]
    )


def others(symbols: list[table.Symbol], made: set[str]) -> str:
    """Without prototypes: only addresses are needed here."""
    lines = ['#include "carrier_table.h"']
    lines += [
        f"int {one.name}(void);" if one.name in made else f"int {one.name}(void) {{ return 801; }}" for one in symbols
    ]
    lines += ["const struct carrier_name carrier_names[] = {"]
    lines += [f'  {{"{one.base}", {one.version}, {one.name}}},' for one in symbols if one.version and not one.variant]
    return "\n".join([*lines, "  {0, 0, 0},", "};", ""])


def main() -> None:
    out = Path(sys.argv[1])
    symbols = {one.name: one for one in table.driver()}
    lines = [line.split() for line in (HERE / "calls.txt").read_text().splitlines() if not line.startswith("#")]
    calls = [(how, symbols[name]) for how, name in lines]
    ops = [f"  OP_{one.name}," for _, one in calls]
    (out / "carrier_ops.h").write_text("\n".join(["enum {", "  OP_NONE,", *ops, "  OP_OWN", "};", ""]))
    (out / "carrier_client.h").write_text("\n\n".join(client(how, one) for how, one in calls) + "\n")
    rows = [f"    {{serve_{one.name}, {'true' if how == 'sync' else 'false'}}}," for how, one in calls]
    served = ["static const struct served served[] = {", "    {NULL, false},", *rows, "};", ""]
    (out / "carrier_server.h").write_text("\n\n".join(server(one) for _, one in calls) + "\n\n" + "\n".join(served))
    by_hand = set(DEFINED.findall((HERE / CLIENT).read_text())) | {"cuGetErrorName", "cuGetErrorString"}
    made = {one.name for how, one in calls if how != "own"} | by_hand
    (out / "carrier_others.c").write_text(others(list(symbols.values()), made))


if __name__ == "__main__":
    main()
