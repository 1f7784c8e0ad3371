/* Calls of the driver that make an object, or take hold of one: by a handle, an address, or what was exported. */
#ifndef GPUSHARE_MEMORY_USES_H
#define GPUSHARE_MEMORY_USES_H

#include "interposer/memory/objects.h"

struct gs_use {
  uint64_t handle, other; /* that it uses; 0: none */
  uint64_t address;       /* in a mapping; 0: none */
  uint64_t call;
  uint64_t holder;   /* the object that an import makes; 0: none */
  CUcontext context; /* with which what it maps ends; NULL: none */
  uint32_t begun;
};

/* What a call may add to the books. */
enum gs_makes { GS_MAKES_HANDLE = 1, GS_MAKES_MAPPING = 2, GS_MAKES_BINDING = 4, GS_MAKES_EXPORT = 8 };

/* To be called before the driver; makes room for what the call may record. False: out of memory, and nothing began. */
bool gs_use_begin(struct gs_use *use, unsigned makes, uint64_t handle, uint64_t other, uint64_t address);
void gs_use_end(struct gs_use *use);

/* ---- within a use, after the driver's call succeeded ---- */

/* handle names the memory mapped at use->address. */
void gs_object_retained(const struct gs_use *use, uint64_t handle);
/* The memory of use->other, or at use->address, is now in this range of the multicast object use->handle. device: for
 * which it is bound; -1: that of the memory. */
void gs_object_bound(const struct gs_use *use, CUdevice device, uint64_t offset, uint64_t bytes);

/* ---- within a use, before and after the driver's call ---- */

/* Announces that use->handle is mapped there, if that is known before; then whether the driver did. */
void gs_map_begin(const struct gs_use *use, uint64_t address, uint64_t bytes);
void gs_map_end(const struct gs_use *use, uint64_t address, uint64_t bytes, bool mapped);

#endif
