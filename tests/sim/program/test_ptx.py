"""How the simulated driver judges PTX texts: it compiles nothing, but finds what people get wrong."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from run.simworker import Worker, start

from gpushare.paths import SPIN_PTX

INVALID, UNSUPPORTED = "CUDA_ERROR_INVALID_PTX", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
KERNEL = """.visible .entry axpy(
    .param .f32 axpy_param_0,
    .param .u64 axpy_param_1
)
.maxntid 256, 1, 1
{
    .reg .pred %p<2>;
    .reg .f32 %f<3>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.f32 %f1, [axpy_param_0];
    ld.param.u64 %rd1, [axpy_param_1];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r1, 256, %r2;
    setp.ge.s32 %p1, %r3, 1000;
    @%p1 bra $L__BB0_2;
    mul.wide.s32 %rd2, %r3, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f2, [%rd3];
    st.global.f32 [%rd3], %f2;
$L__BB0_2:
    ret;
}
"""
TEXT = HEAD + KERNEL

MISTAKES = {
    "no version": (TEXT.replace(".version 8.0\n", ""), INVALID, 1, "Missing .version"),
    "no target": (TEXT.replace(".target sm_80\n", ""), INVALID, 2, "Missing .target"),
    "a version that is none": (TEXT.replace("8.0", "eight"), INVALID, 1, "eight"),
    "a newer version": (TEXT.replace("8.0", "99.0"), UNSUPPORTED, 1, "99.0"),
    "a target that is none": (TEXT.replace("sm_80", "sm_81"), INVALID, 2, "sm_81"),
    "a newer target": (TEXT.replace("sm_80", "sm_90a"), INVALID, 2, "higher than default SM version"),
    "a word": (HEAD + "broken\n", INVALID, 4, "broken"),
    "an unknown directive": (HEAD + ".visibel .entry k() { ret; }\n", INVALID, 4, ".visibel"),
    "no semicolon": (TEXT.replace("[axpy_param_0];", "[axpy_param_0]"), INVALID, 15, "ld.param.u64"),
    "no semicolon at the end": (TEXT.replace("ret;", "ret"), INVALID, 27, "}"),
    "no closing brace": (TEXT.removesuffix("}\n"), INVALID, 27, ""),
    "a brace too many": (TEXT + "}\n", INVALID, 28, "}"),
    "no closing bracket": (TEXT.replace("axpy_param_1\n)", "axpy_param_1\n"), INVALID, 8, ".maxntid"),
    "an open address": (TEXT.replace("[axpy_param_1]", "[axpy_param_1"), INVALID, 15, ";"),
    "an unknown instruction": (TEXT.replace("mad.lo", "madd.lo"), INVALID, 18, "madd.lo"),
    "an unknown type": (TEXT.replace("mov.u32 %r2", "mov.u33 %r2"), INVALID, 17, ".u33"),
    "an undeclared parameter": (TEXT.replace("[axpy_param_1]", "[axpy_param_2]"), INVALID, 15, "axpy_param_2"),
    "an undeclared register": (TEXT.replace("%r<4>", "%r<3>"), INVALID, 18, "%r3"),
    "a label that is nowhere": (TEXT.replace("bra $L__BB0_2", "bra $L__BB0_3"), INVALID, 20, "$L__BB0_3"),
    "an operand too many": (TEXT.replace("%rd1, %rd2", "%rd1 %rd2"), INVALID, 22, "%rd2"),
    "an operand too few": (TEXT.replace("%rd1, %rd2", "%rd1,"), INVALID, 22, ";"),
}

LOAD = """
    def load(text):
        log = bytearray(1024)
        kinds = d.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, d.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
        answer = d.cuModuleLoadDataEx(text.encode() + b"\\0", 2, list(kinds), [log, len(log)])
        return [answer[0].name, bytes(log).split(b"\\0")[0].decode()]
"""


@pytest.fixture
def worker(sim: Any) -> Worker:
    made = start(sim)
    made.do(LOAD)
    return made


def test_mistakes(worker: Worker) -> None:
    assert worker.get(f"load({TEXT!r})") == ["CUDA_SUCCESS", ""]
    for what, (text, error, line, near) in MISTAKES.items():
        result, log = worker.get(f"load({text!r})")
        assert result == error, what
        assert re.search(rf"^ptxas .*, line {line}; (fatal|error)   : .*{re.escape(near)}", log), f"{what}: {log}"


def test_libraries_and_links(worker: Worker) -> None:
    wrong = MISTAKES["a word"][0].encode() + b"\0"
    assert worker.error(f"d.cuModuleLoadData({wrong!r})") == INVALID
    assert worker.error(f"d.cuLibraryLoadData({wrong!r}, [], [], 0, [], [], 0)") == INVALID
    worker.do("link = ok(d.cuLinkCreate(0, [], []))")
    adds = f"d.cuLinkAddData(link, d.CUjitInputType.CU_JIT_INPUT_PTX, {wrong!r}, {len(wrong)}, b'x', 0, [], [])"
    assert worker.error(adds) == INVALID


LANGUAGE = """
.extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b);
.func (.param .b32 result) twice (.param .b32 a);
.global .align 8 .u64 functions[2] = {twice, twice};
.global .attribute(.managed) .align 4 .u32 managed;
.const .align 4 .b8 bytes[16] = {0, 0, 128, 63, 0xff, 0, 0, 0};
.global .u64 there = generic(bytes) + 4;
.global .align 8 .u8 pieces[8] = {0xFF(there), 0xFF00(there), 0, 0, 0, 0, 0, 0};
.common .global .align 8 .u64 environment;
.extern .shared .align 16 .b8 dynamic[];
.global .texref picture;
.weak .global .f32 numbers[] = {0f3F800000, 1.5, 1.0e-3, -2.0};
.func (.param .b32 result) twice (.param .b32 a) {
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [a];
    add.s32 %r2, %r1, %r1;
    st.param.b32 [result+0], %r2;
    ret;
}
.visible .entry all (.param .u64 .ptr .global .align 1 p, .param .align 8 .b8 s[24]) .reqntid 128 .minnctapersm 2
{
    .reg .pred p, q;
    .reg .b32 r, t, v<4>;
    .reg .b64 d;
    .reg .v4 .f32 vector;
    .local .align 4 .b8 frame[16];
    .loc 1 7 3, function_name $L__info_string0, inlined_at 1 9 2
    .pragma "nounroll";
    mov.b64 d, {r, t};
    mov.u64 d, bytes+8;
    setp.lt.and.s32 p|q, r, -1, !p;
    @!p bra.uni L1;
    { // callseq 0, 0
        .reg .b32 temp;
        .param .b32 param0;
        st.param.b32 [param0+0], r;
        .param .b32 retval0;
        call.uni (retval0), twice, (param0);
        ld.param.b32 t, [retval0+0];
    } // callseq 0
    call (retval0), d, (param0), prototype_0;
    prototype_0: .callprototype (.param .b32 _) _ (.param .b32 _);
L1: mov.u32 r, %laneid;
    cp.async.cg.shared.global.L2::128B [dynamic], [d], 16;
    ld.global.L1::evict_last.v4.b32 {v0, v1, v2, v3}, [d + 16];
    mad.lo.s32 r, t, (1 + 2) * 4 % 5, WARP_SZ;
    prmt.b32 r, t, v0, 0x5410U;
    shfl.sync.idx.b32 r|p, t, 0, 31, 0xffffffff;
    tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [picture, {r, t}];
    .reg .f32 %f<5>;
    mov.f32 vector.x, 0f00000000;
    mov.u64 d, %clock64;
    brx.idx r, targets;
targets: .branchtargets L1, L2;
L2 : atom.global.add.u32 _, [d], 1;
    ret;
}
.file 1 "a{b"
.section .debug_str { $L__info_string0: .b8 95, 90 .b8 0 }
"""


def test_the_whole_language_is_accepted(worker: Worker) -> None:
    assert worker.get(f"load({HEAD + LANGUAGE!r})") == ["CUDA_SUCCESS", ""]
    lines = (HEAD + LANGUAGE).replace("\n", "\r\n")
    assert worker.get(f"load({lines!r})") == ["CUDA_SUCCESS", ""]
    assert worker.get(f"load({SPIN_PTX.read_text()!r})") == ["CUDA_SUCCESS", ""]


NVCC = Path("/usr/local/cuda/bin/nvcc")
SOURCE = """
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdio.h>
__constant__ float table[4] = {1, 2, 3, 4};
__device__ __managed__ int managed;
extern __shared__ float dynamic[];
struct Big { int a[40]; double b; };
__device__ __noinline__ int deep(int n) { return n < 2 ? n : deep(n - 1) + deep(n - 2); }
__device__ int (*functions[2])(int) = {deep, deep};
__global__ void calls(Big big, int *p) {
  p[0] = functions[p[1] & 1](p[2]) + big.a[threadIdx.x % 40];
  dynamic[threadIdx.x] = table[threadIdx.x & 3];
  cooperative_groups::this_thread_block().sync();
  atomicAdd(&managed, (int)dynamic[0]);
  switch (p[4]) { case 0: p[5] = 1; break; case 1: p[5] = 7; break; case 2: p[5] = 9; break; case 3: p[5] = 11; break;
                  case 4: p[5] = 13; break; case 5: p[5] = deep(3); break; default: p[5] = 4; }
  printf("%d\\n", p[0]);
}
__global__ void tensors(half *a, half *b, float *c) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> x;
  fragment<matrix_b, 16, 16, 16, half, col_major> y;
  fragment<accumulator, 16, 16, 16, float> z;
  fill_fragment(z, 0.f); load_matrix_sync(x, a, 16); load_matrix_sync(y, b, 16); mma_sync(z, x, y, z);
  store_matrix_sync(c, z, 16, mem_row_major);
}
"""


@pytest.mark.skipif(not NVCC.exists(), reason="no nvcc at /usr/local/cuda")
@pytest.mark.parametrize("option", ["-lineinfo", pytest.param("-G", marks=pytest.mark.slow)])
def test_what_nvcc_writes_is_accepted(worker: Worker, tmp_path: Path, option: str) -> None:
    source, text = tmp_path / "a.cu", tmp_path / "a.ptx"
    source.write_text(SOURCE)
    subprocess.run([NVCC, "-ptx", "-arch=sm_80", option, source, "-o", text], check=True, capture_output=True)
    assert worker.get(f"load(open({str(text)!r}).read())") == ["CUDA_SUCCESS", ""]
