#!/usr/bin/env python3
"""Writes rt_api.h, rt_calls.c and libcudart.MAJOR.map from native/api/runtime.tsv: gen_runtime.py OUT_DIR SOURCE...

rt_api.h   the prototype of every function of the runtime of version RT_MAJOR, so that each written one is checked
           against the table; the struct of the driver's functions that the table and the given sources use.
rt_calls.c every function that only forwards or that is not simulated; the per-thread twins: the plain function, with
           the driver's per-thread functions; the names by which the driver's functions are looked up; the
           errors of native/api/runtime_errors.tsv.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "api"))
import table  # type: ignore[import-not-found]

NAME = re.compile(r"(\w+)\s*(?:\[\d*\])?$")
USED = re.compile(r"\brt_driver\.(cu\w+)")
CALL = re.compile(r"(start )?(cu\w+)(?:\((.*)\))?$")
# The runtime's names of the driver's types. Others are enumerations, and handles or structures behind a pointer.
TYPES = {
    "cudaArray_const_t": "CUarray",
    "cudaArray_t": "CUarray",
    "cudaEvent_t": "CUevent",
    "cudaExecutionContext_t": "CUgreenCtx",
    "cudaFunction_t": "CUfunction",
    "cudaGraphConditionalHandle": "unsigned long long",
    "cudaGraphExec_t": "CUgraphExec",
    "cudaGraphNode_t": "CUgraphNode",
    "cudaGraph_t": "CUgraph",
    "cudaHostFn_t": "CUhostFn",
    "cudaIpcEventHandle_t": "CUipcEventHandle",
    "cudaIpcMemHandle_t": "CUipcMemHandle",
    "cudaKernelNodeAttrID": "int",
    "cudaKernel_t": "CUkernel",
    "cudaLaunchAttributeID": "int",
    "cudaLaunchConfig_t": "struct cudaLaunchConfig",
    "cudaLibrary_t": "CUlibrary",
    "cudaMemPool_t": "CUmemoryPool",
    "cudaMipmappedArray_const_t": "CUmipmappedArray",
    "cudaMipmappedArray_t": "CUmipmappedArray",
    "cudaStreamCallback_t": "CUstreamCallback",
    "cudaStream_t": "CUstream",
    "cudaSurfaceObject_t": "CUsurfObject",
    "cudaTextureObject_t": "CUtexObject",
    "dim3": "rt_dim3",
    "struct cudaMemLocation": "CUmemLocation",
}
RETURNS = {
    "cudaGetErrorName": "const char *",
    "cudaGetErrorString": "const char *",
    "cudaCreateChannelDesc": "struct cudaChannelFormatDesc",
    "__cudaPushCallConfiguration": "unsigned",
    "__cudaInitModule": "char",
    "__cudaRegisterFatBinary": "void **",
    "__cudaRegisterFatBinaryEnd": "void",
    "__cudaRegisterFunction": "void",
    "__cudaRegisterHostVar": "void",
    "__cudaRegisterManagedVar": "void",
    "__cudaRegisterUnifiedTable": "void",
    "__cudaRegisterVar": "void",
    "__cudaUnregisterFatBinary": "void",
}


def in_c(parameters: str) -> str:
    """The parameters with the types that this library declares."""
    text = re.sub(r"\benum (\w+)", "int", parameters)
    for name, ours in TYPES.items():
        text = re.sub(rf"\b{name}\b", ours, text)
    text = re.sub(r"(?<!struct )\bcuda\w+(\s*\*)", r"void\1", text)
    return re.sub(r"(?<!struct )\bcuda(?!Error_t)\w+\b(?=\s+\w)", "void *", text)


def names(parameters: str) -> list[str]:
    return [NAME.findall(part.strip())[0] for part in parameters.split(",") if part.strip() != "void"]


def type_of(parameter: str) -> str:
    text = parameter.strip()
    array = text.endswith("]")
    text = NAME.sub("", text).strip()
    return text + " *" if array else text


class Writer:
    def __init__(self, sources: list[str]) -> None:
        self.driver = {s.name: s for s in table.driver()}
        self.rows = list(table.runtime())
        self.used: set[str] = set()
        for source in sources:
            self.used |= set(USED.findall(Path(source).read_text()))

    def forward(self, row: table.RuntimeFunction) -> list[str]:
        match = CALL.match(row.does)
        assert match is not None, row
        start, symbol, given = match.groups()
        self.used.add(symbol)
        wanted = [type_of(p) for p in self.driver[symbol].parameters.split(",") if p.strip() != "void"]
        own = {
            name: text.strip()
            for text in in_c(row.parameters).split(",")
            if text.strip() != "void"
            for name in NAME.findall(text.strip())
        }
        passed = [part.strip() for part in given.split(",")] if given else list(own)
        assert len(passed) == len(wanted), row
        lines = [f"  cudaError_t error_ = {'rt_start' if start else 'rt_enter'}();"]
        arguments = []
        for kind, text in zip(wanted, passed, strict=True):
            parameter = own.get(text, "")
            if kind in ("CUfunction", "CUkernel") and parameter.startswith("const void"):
                what = "rt_kernel" if kind == "CUkernel" else "rt_function"
                lines += [f"  {kind} {text}_ = NULL;", "  if (error_ == cudaSuccess)"]
                lines += [f"    error_ = {what}({text}, &{text}_);"]
                text = f"{text}_"
            elif text == "context" and not parameter:
                lines += ["  CUcontext context = rt_context();"]
            elif text == "device" and not parameter:
                lines += ["  CUdevice device = 0;", "  if (error_ == cudaSuccess)", "    error_ = rt_device(&device);"]
            elif "*" in parameter:
                text = f"({kind})(uintptr_t){text}"
            elif parameter and "Handle " not in parameter and "Location" not in parameter:
                text = f"({kind}){text}"
            arguments.append(text)
        call = f"rt_driver.{symbol}({', '.join(arguments)})"
        return [*lines, f"  return error_ == cudaSuccess ? rt_done({call}) : error_;"]

    def function(self, row: table.RuntimeFunction) -> list[str]:
        if row.does == "none":
            return [f"cudaError_t {row.name}(void) {{ return rt_fail(cudaErrorNotSupported); }}"]
        return [f"cudaError_t {row.name}({in_c(row.parameters)}) {{", *self.forward(row), "}"]

    def twin(self, row: table.RuntimeFunction) -> list[str]:
        head = self.prototype(row, "_" + row.variant)
        call = f"{row.name}({', '.join(names(row.parameters)) if row.does != 'none' else ''})"
        return [
            f"{head} {{",
            "  bool before_ = rt_per_thread;",
            "  rt_per_thread = true;",
            f"  cudaError_t error_ = {call};",
            "  rt_per_thread = before_;",
            "  return error_;",
            "}",
        ]

    def prototype(self, row: table.RuntimeFunction, suffix: str = "") -> str:
        parameters = "void" if row.does == "none" else in_c(row.parameters)
        return f"{RETURNS.get(row.name, 'cudaError_t')} {row.name}{suffix}({parameters})"

    @staticmethod
    def guarded(row: table.RuntimeFunction, lines: list[str]) -> list[str]:
        if len(row.majors) > 1:
            return lines
        return [f"#if RT_MAJOR == {row.majors[0]}", *lines, "#endif"]

    def calls(self) -> str:
        lines = ["/* Generated by gen_runtime.py. */", '#include "sim/cudart/cudart.h"']
        for row in self.rows:
            body = self.function(row) if row.does != "hand" else []
            lines += self.guarded(row, body + (self.twin(row) if row.variant else []))
        lines += ["const struct rt_lookup rt_lookups[] = {"]
        for name in sorted(self.used):
            symbol = self.driver[name]
            twin = next((self.driver[t] for t in (name + "_ptds", name + "_ptsz") if t in self.driver), symbol)
            versions = f"{{{symbol.version}, {twin.version}}}"
            lines += [f'  {{"{symbol.base}", {versions}, offsetof(struct rt_functions, {name})}},']
        lines += ["};", "const unsigned rt_nlookups = sizeof rt_lookups / sizeof rt_lookups[0];"]
        lines += ["const struct rt_error rt_errors[] = {"]
        lines += [f'  {{{number}, "{name}", "{text}"}},' for number, name, text in table.runtime_errors()]
        lines += ["};", "const unsigned rt_nerrors = sizeof rt_errors / sizeof rt_errors[0];"]
        return "\n".join([*lines, ""])

    def header(self) -> str:
        lines = ["/* Generated by gen_runtime.py. */", "#ifndef RT_API_H", "#define RT_API_H"]
        for major, number in sorted(table.runtime_versions().items()):
            lines += [f"#if RT_MAJOR == {major}", f"enum {{ RT_VERSION = {number} }};", "#endif"]
        structs = {name for row in self.rows for name in re.findall(r"struct \w+", in_c(row.parameters))}
        lines += [f"{name};" for name in sorted(structs)]
        lines += ["struct rt_functions {", *(f"  __typeof__({name}) *{name};" for name in sorted(self.used)), "};"]
        lines += ["#pragma GCC visibility push(default)"]
        for row in self.rows:
            declared = [f"{self.prototype(row)};"]
            if row.variant:
                declared += [f"{self.prototype(row, '_' + row.variant)};"]
            lines += self.guarded(row, declared)
        return "\n".join([*lines, "#pragma GCC visibility pop", "#endif", ""])


def main() -> None:
    out, sources = Path(sys.argv[1]), sys.argv[2:]
    writer = Writer(sources)
    (out / "rt_calls.c").write_text(writer.calls())
    (out / "rt_api.h").write_text(writer.header())
    for major in table.runtime_versions():
        version = f"libcudart.so.{major} {{\n  global: cuda*; __cuda*;\n  local: *;\n}};\n"
        (out / f"libcudart.{major}.map").write_text(version)


if __name__ == "__main__":
    main()
