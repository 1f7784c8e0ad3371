#include "page/gs_trace.h"

#include <stddef.h>

static const struct {
  const char *area, *text;
} kinds[GS_TRACE_COUNT] = {
#define ROW(name, area, text) [GS_TRACE_##name] = {area, text},
    GS_TRACE_KINDS(ROW)
#undef ROW
};

const char *gs_trace_area(uint32_t kind) { return kind < GS_TRACE_COUNT ? kinds[kind].area : NULL; }

const char *gs_trace_text(uint32_t kind) { return kind < GS_TRACE_COUNT ? kinds[kind].text : NULL; }
