#define _GNU_SOURCE
#include "sim/program/images/references.h"

#include <stdlib.h>
#include <string.h>

struct sim_kind sim_reference_kind = {sizeof(struct sim_reference), 0x72656672, NULL};

struct sim_reference *sim_reference_new(bool surface) {
  sim_lock();
  struct sim_reference *made = sim_handle_new(&sim_reference_kind);
  sim_unlock();
  if (made == NULL)
    return NULL;
  made->surface = surface;
  made->format = CU_AD_FORMAT_FLOAT;
  made->channels = made->anisotropy = 1;
  return made;
}

void sim_reference_free(struct sim_reference *reference) {
  free(reference->name);
  sim_lock();
  sim_handle_free(&sim_reference_kind, reference);
  sim_unlock();
}

struct sim_reference *sim_reference_add(struct sim_reference **list, const char *name, size_t length, bool surface) {
  struct sim_reference *made = sim_reference_new(surface);
  if (made == NULL)
    return NULL;
  made->name = strndup(name, length);
  if (made->name == NULL) {
    sim_reference_free(made);
    return NULL;
  }
  made->next = *list;
  *list = made;
  return made;
}

struct sim_reference *sim_reference_find(struct sim_reference *list, const char *name, bool surface) {
  while (list && (list->surface != surface || strcmp(list->name, name) != 0))
    list = list->next;
  return list;
}

void sim_references_free(struct sim_reference *list) {
  for (struct sim_reference *next; list; list = next) {
    next = list->next;
    sim_reference_free(list);
  }
}
