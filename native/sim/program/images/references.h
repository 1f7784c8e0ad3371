/* Texture and surface references: variables of a program through which its kernels refer to an array or memory. */
#ifndef SIM_REFERENCES_H
#define SIM_REFERENCES_H

#include "sim/model/handle.h"
#include "sim/model/process.h"

enum { SIM_TEXTURE_DIMENSIONS = 3 };
enum sim_bound { BOUND_NONE, BOUND_ADDRESS, BOUND_ARRAY, BOUND_MIPMAPPED };

/* Behind CUtexref and CUsurfref. */
struct sim_reference {
  uint32_t magic;
  bool surface, created; /* created: by cuTexRefCreate, so it belongs to no program */
  char *name;
  enum sim_bound bound;
  CUdeviceptr address;
  CUarray array;
  CUmipmappedArray mipmapped;
  CUarray_format format;
  int channels;
  CUaddress_mode address_mode[SIM_TEXTURE_DIMENSIONS];
  CUfilter_mode filter, mipmap_filter;
  float bias, clamp[2], border[4];
  unsigned anisotropy, flags;
  struct sim_reference *next;
};

extern struct sim_kind sim_reference_kind;
struct sim_reference *sim_reference_new(bool surface); /* in no list; NULL: out of memory */
void sim_reference_free(struct sim_reference *reference);
/* A new reference with this name in a list; NULL: out of memory. */
struct sim_reference *sim_reference_add(struct sim_reference **list, const char *name, size_t length, bool surface);
struct sim_reference *sim_reference_find(struct sim_reference *list, const char *name, bool surface); /* or NULL */
/* Resolves a handle. INVALID_VALUE if the reference is not live; requires a current context. */
CUresult sim_reference_get(const void *handle, bool surface, struct sim_reference **reference);
void sim_references_free(struct sim_reference *list);

#endif
