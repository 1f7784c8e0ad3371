/* Attributes of streams and of kernel nodes: stored and returned, without effect on the simulation. */
#ifndef SIM_ATTRIBUTES_H
#define SIM_ATTRIBUTES_H

#include <stdbool.h>

enum { SIM_ATTRIBUTES = 6, SIM_ATTRIBUTE_BYTES = 64 };

/* CUlaunchAttributeID */
enum {
  SIM_ATTRIBUTE_WINDOW = 1, /* of the L2 cache */
  SIM_ATTRIBUTE_COOPERATIVE = 2,
  SIM_ATTRIBUTE_POLICY = 3, /* of waiting */
  SIM_ATTRIBUTE_PRIORITY = 8,
  SIM_ATTRIBUTE_DOMAIN_MAP = 9, /* of memory synchronisation */
  SIM_ATTRIBUTE_DOMAIN = 10
};

/* All zero: none has been set. */
struct sim_attributes {
  unsigned set; /* bits, by place */
  unsigned char value[SIM_ATTRIBUTES][SIM_ATTRIBUTE_BYTES];
};

/* The fields of the driver's CUlaunchAttributeValue that are read here. */
union sim_attribute {
  unsigned char bytes[SIM_ATTRIBUTE_BYTES];
  struct {
    void *base;
    unsigned long bytes;
    float hit_ratio;
    int hit, miss; /* 0: normal, 1: streaming, 2: persisting */
  } window;
  int number; /* cooperative, policy, priority, domain */
  struct {
    unsigned char plain, remote;
  } map;
};

/* False: unknown attribute, or invalid value. */
bool sim_attribute_set(struct sim_attributes *all, int id, const union sim_attribute *value);
/* Returns the value set, or the default. False: unknown attribute. */
bool sim_attribute_get(const struct sim_attributes *all, int id, union sim_attribute *value);

#endif
