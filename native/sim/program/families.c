/* The work per thread of the kernels of frameworks, as far as it follows from their names and not from their grids. */
#include <string.h>

#include "sim/model/card.h"
#include "sim/program/duration.h"

enum { FLOAT = sizeof(float), TILE = 64, FLASH_TILE = 128, HEAD = 64 /* elements of an attention head: assumed */ };

/* Operations of a thread in attention, per tile of keys that its block reads: two products of the tile in the forward
 * pass, five in the backward pass. */
#define ATTENTION(products, tile, threads) (2.0 * (products) * (tile) * (tile) * HEAD / (threads))

/* Elements per thread are those of PyTorch 2's kernels for large tensors (observed in their launches) and of the usual
 * settings of its Inductor. Unless noted otherwise, elements are assumed to be floats, and operands to be two. */
static const struct {
  const char *piece; /* of the name, mangled or not; the first that is found counts */
  struct sim_work work;
} families[] = {
    {"vectorized_elementwise_kernel", {.bytes = 8 * 2 * FLOAT}},
    {"unrolled_elementwise_kernel", {.bytes = 4 * 2 * FLOAT}},
    {"elementwise_kernelILi128ELi4E", {.bytes = 4 * 2 * FLOAT}},
    {"elementwise_kernelILi128ELi2E", {.bytes = 2 * 2 * FLOAT}},
    {"triton_poi_", {.bytes = 8 * 2 * FLOAT}},
    {"triton_per_", {.bytes = 8 * 2 * FLOAT}},
    {"triton_red_", {.bytes = 64 * FLOAT}},
    {"gather_kernel", {.bytes = 2 * 16}},
    /* A block per row, a row of 1,024 by 128 threads; the gradients of its parameters: a warp per 64 rows. */
    {"GammaBetaBackward", {.bytes = 64 * FLOAT}},
    {"layer_norm", {.bytes = 8 * 2 * FLOAT}},
    /* A warp per row of up to 1,024, or a block per longer row. */
    {"softmax_warp_", {.bytes = 32 * 2 * FLOAT}},
    {"SoftMax", {.bytes = 32 * 2 * FLOAT}},
    {"reduce_kernel", {.bytes = 16 * FLOAT}},
    /* Each block of 512 threads processes 65,536 elements: of the parameters, gradients and two moments, of which all
     * but the gradients are written; or of two tensors and a result. */
    {"FusedOptimizerTensorListMetadata", {.bytes = 128 * 7 * FLOAT}},
    {"multi_tensor_apply_kernel", {.bytes = 128 * 3 * FLOAT}},
    /* Attention: the numbers of keys and queries are assumed to be equal. A block of the split form reads 256 keys and
     * values in FP16, from a cache with as many splits. */
    {"fmha_cutlassF_f32",
     {.operations = ATTENTION(2, TILE, 128), .per_clock = SIM_FP32_PER_CLOCK, .each_column = true}},
    {"fmha_cutlassB_f32",
     {.operations = ATTENTION(5, TILE, 128), .per_clock = SIM_FP32_PER_CLOCK, .each_column = true}},
    {"fmha_cutlassF", {.operations = ATTENTION(2, TILE, 128), .per_clock = SIM_FP16_PER_CLOCK, .each_column = true}},
    {"fmha_cutlassB", {.operations = ATTENTION(5, TILE, 128), .per_clock = SIM_FP16_PER_CLOCK, .each_column = true}},
    {"flash_fwd_splitkv_combine", {.bytes = 8 * 2 * FLOAT}},
    {"flash_fwd_splitkv", {.bytes = 256.0 * 2 * HEAD * 2 / 128}},
    {"flash_fwd", {.operations = ATTENTION(2, FLASH_TILE, 128), .per_clock = SIM_FP16_PER_CLOCK, .each_column = true}},
    {"flash_bwd_dq_dk_dv",
     {.operations = ATTENTION(5, FLASH_TILE, 256), .per_clock = SIM_FP16_PER_CLOCK, .each_column = true}},
    {"flash_bwd", {.bytes = 8 * 2 * FLOAT}},
    /* Products outside cuBLAS: a block of 256 threads has a tile of 128 by 128, over 1,024 elements. */
    {"gemm", {.operations = 2.0 * 128 * 128 * 1024 / 256, .per_clock = SIM_FP16_PER_CLOCK}},
    {"cutlass", {.operations = 2.0 * 128 * 128 * 1024 / 256, .per_clock = SIM_FP16_PER_CLOCK}},
    {"triton_tem_", {.operations = 2.0 * 128 * 128 * 1024 / 256, .per_clock = SIM_FP16_PER_CLOCK}},
    {"", {.bytes = 3 * FLOAT}}, /* any other: reads two elements, writes one */
};

const struct sim_work *sim_work_of(const char *name) {
  size_t i = 0;
  while (!strstr(name, families[i].piece))
    i++;
  return &families[i].work;
}
