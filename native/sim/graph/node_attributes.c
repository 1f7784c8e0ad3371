/* Attributes of kernel nodes. */
#include <stdlib.h>
#include <string.h>

#include "sim/graph/graph.h"

static CUresult kernel_node(CUgraphNode handle, struct sim_graph_node **node) {
  CUresult result = sim_node_get(handle, node);
  return result == CUDA_SUCCESS && (*node)->type != CU_GRAPH_NODE_TYPE_KERNEL ? CUDA_ERROR_INVALID_VALUE : result;
}

static bool of_kernels(CUkernelNodeAttrID id) { return id != SIM_ATTRIBUTE_POLICY; }

/* The node's attributes, allocated when the first one is set; NULL: out of memory. Requires sim_lock. */
static struct sim_attributes *own(struct sim_graph_node *node) {
  if (node->attributes == NULL)
    node->attributes = calloc(1, sizeof *node->attributes);
  return node->attributes;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, CUkernelNodeAttrValue *value_out) {
  static const struct sim_attributes none;
  struct sim_graph_node *node;
  union sim_attribute value;
  CUresult result = kernel_node(hNode, &node);
  if (result)
    return result;
  sim_lock();
  bool known =
      value_out && of_kernels(attr) && sim_attribute_get(node->attributes ? node->attributes : &none, attr, &value);
  sim_unlock();
  if (known)
    memcpy(value_out, &value, sizeof value);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue *value) {
  struct sim_graph_node *node;
  union sim_attribute wanted;
  CUresult result = kernel_node(hNode, &node);
  if (result)
    return result;
  if (value == NULL || !of_kernels(attr))
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(&wanted, value, sizeof wanted);
  sim_lock();
  struct sim_attributes *all = own(node);
  bool kept = all && sim_attribute_set(all, attr, &wanted);
  sim_unlock();
  return kept ? CUDA_SUCCESS : all ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
  struct sim_graph_node *from, *to;
  CUresult result = kernel_node(src, &from);
  if (result == CUDA_SUCCESS)
    result = kernel_node(dst, &to);
  if (result)
    return result;
  sim_lock();
  if (from->attributes == NULL && to->attributes)
    memset(to->attributes, 0, sizeof *to->attributes);
  else if (from->attributes && own(to))
    *to->attributes = *from->attributes;
  else if (from->attributes)
    result = CUDA_ERROR_OUT_OF_MEMORY;
  sim_unlock();
  return result;
}
