/* The list of contexts, and each thread's stack of current contexts. */
#include "sim/model/context.h"

#include <string.h>

#include "sim/model/handle.h"

static struct sim_kind ctx_kind = {sizeof(struct sim_ctx), 0x63747874, NULL};
static uint64_t ctx_ids;
struct sim_ctx *sim_contexts;

/* A context may be destroyed while it is on a thread's stack, and its memory reused for another one; the id detects
 * this. */
enum { STACK_MAX = 256 };
struct entry {
  struct sim_ctx *ctx;
  uint64_t id;
};
static __thread struct entry stack[STACK_MAX];
static __thread int depth;
static __thread bool in_host_function;

void sim_host_function(bool inside) { in_host_function = inside; }
bool sim_in_host_function(void) { return in_host_function; }

static bool entry_alive(const struct entry *entry) {
  return entry->ctx->magic == ctx_kind.magic && entry->ctx->id == entry->id && entry->ctx->alive;
}

struct sim_ctx *sim_ctx_current(void) { return depth && entry_alive(&stack[depth - 1]) ? stack[depth - 1].ctx : NULL; }

CUresult sim_ctx_need(struct sim_ctx **ctx) {
  if (sim_in_host_function())
    return CUDA_ERROR_NOT_PERMITTED;
  if (depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  *ctx = sim_ctx_current();
  return *ctx ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_ctx_get(CUcontext handle, struct sim_ctx **ctx) {
  if (handle == NULL)
    return sim_ctx_need(ctx);
  *ctx = (struct sim_ctx *)handle;
  return (*ctx)->magic == ctx_kind.magic && (*ctx)->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_ctx_current_fault(void) {
  struct sim_ctx *ctx = sim_ctx_current();
  return ctx ? sim_ctx_fault(ctx) : CUDA_SUCCESS;
}

/* ---- the stack --------------------------------------------------------------------------------------------------- */

bool sim_ctx_push(struct sim_ctx *ctx) {
  if (depth == STACK_MAX)
    return false;
  stack[depth++] = (struct entry){ctx, ctx->id};
  return true;
}

bool sim_ctx_may_push(void) { return depth < STACK_MAX; }

bool sim_ctx_pop(void) { return depth > 0 && depth--; }

void sim_ctx_set(struct sim_ctx *ctx) {
  if (depth == 0)
    depth = 1;
  stack[depth - 1] = (struct entry){ctx, ctx->id};
}

struct sim_ctx *sim_ctx_top(void) { return depth ? stack[depth - 1].ctx : NULL; }

/* ---- live contexts ----------------------------------------------------------------------------------------------- */

struct sim_ctx *sim_ctx_new(CUdevice device) {
  struct sim_ctx *ctx = sim_handle_new(&ctx_kind);
  if (ctx)
    ctx->device = device;
  return ctx;
}

void sim_ctx_free(struct sim_ctx *ctx) { sim_handle_free(&ctx_kind, ctx); }

void sim_ctx_begin(struct sim_ctx *ctx) {
  ctx->id = ++ctx_ids;
  ctx->fault = CUDA_SUCCESS;
  ctx->alive = true;
  ctx->next = sim_contexts;
  sim_contexts = ctx;
}

void sim_ctx_end(struct sim_ctx *ctx) {
  for (struct sim_ctx **at = &sim_contexts; *at; at = &(*at)->next)
    if (*at == ctx) {
      *at = ctx->next;
      break;
    }
  ctx->alive = false;
}
