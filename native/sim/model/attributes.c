#include "sim/model/attributes.h"

#include <string.h>

enum { WINDOW_MAX = 134213632, DOMAINS = 4, AUTOMATIC = 1, BLOCK = 4, STREAMING = 1, PERSISTING = 2 };

static int place_of(int id) {
  static const int kept[SIM_ATTRIBUTES] = {SIM_ATTRIBUTE_WINDOW,   SIM_ATTRIBUTE_COOPERATIVE, SIM_ATTRIBUTE_POLICY,
                                           SIM_ATTRIBUTE_PRIORITY, SIM_ATTRIBUTE_DOMAIN_MAP,  SIM_ATTRIBUTE_DOMAIN};
  for (int i = 0; i < SIM_ATTRIBUTES; i++)
    if (kept[i] == id)
      return i;
  return -1;
}

static bool valid(int id, const union sim_attribute *value) {
  switch (id) {
    case SIM_ATTRIBUTE_WINDOW:
      return value->window.bytes <= WINDOW_MAX && value->window.hit_ratio >= 0 && value->window.hit_ratio <= 1 &&
             value->window.hit >= 0 && value->window.hit <= PERSISTING && value->window.miss >= 0 &&
             value->window.miss <= STREAMING;
    case SIM_ATTRIBUTE_POLICY: return value->number >= AUTOMATIC && value->number <= BLOCK;
    case SIM_ATTRIBUTE_DOMAIN_MAP: return value->map.plain < DOMAINS && value->map.remote < DOMAINS;
    case SIM_ATTRIBUTE_COOPERATIVE:
    case SIM_ATTRIBUTE_DOMAIN: return value->number == 0 || value->number == 1;
    default: return true;
  }
}

bool sim_attribute_set(struct sim_attributes *all, int id, const union sim_attribute *value) {
  int place = place_of(id);
  if (place < 0 || !valid(id, value))
    return false;
  memcpy(all->value[place], value, sizeof *value);
  all->set |= 1u << place;
  return true;
}

bool sim_attribute_get(const struct sim_attributes *all, int id, union sim_attribute *value) {
  int place = place_of(id);
  if (place < 0)
    return false;
  memset(value, 0, sizeof *value);
  if (id == SIM_ATTRIBUTE_POLICY)
    value->number = AUTOMATIC;
  if (id == SIM_ATTRIBUTE_DOMAIN_MAP)
    value->map.remote = 1;
  if (all->set >> place & 1)
    memcpy(value, all->value[place], sizeof *value);
  return true;
}
