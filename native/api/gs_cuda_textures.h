/* The CUDA driver ABI of textures, surfaces, sparse arrays and linking. See gs_cuda_types.h. */
#ifndef GS_CUDA_TEXTURES_H
#define GS_CUDA_TEXTURES_H

#include "api/gs_cuda.h"

typedef int CUjit_option;
typedef int CUjitInputType;
typedef int CUresourcetype;
typedef int CUaddress_mode;
typedef int CUfilter_mode;
typedef int CUresourceViewFormat;
typedef int CUarraySparseSubresourceType;
typedef int CUmemOperationType;
typedef int CUmemHandleType;
typedef struct CUlinkState_st *CUlinkState;
typedef struct CUtexref_st *CUtexref;
typedef struct CUsurfref_st *CUsurfref;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;

typedef struct CUDA_RESOURCE_DESC_st {
  CUresourcetype resType;
  union {
    struct {
      CUarray hArray;
    } array;
    struct {
      CUmipmappedArray hMipmappedArray;
    } mipmap;
    struct {
      CUdeviceptr devPtr;
      int format; /* CUarray_format */
      unsigned numChannels;
      size_t sizeInBytes;
    } linear;
    struct {
      CUdeviceptr devPtr;
      int format;
      unsigned numChannels;
      size_t width, height; /* in elements */
      size_t pitchInBytes;
    } pitch2D;
    int reserved[32];
  } res;
  unsigned flags;
} CUDA_RESOURCE_DESC;

typedef struct CUDA_TEXTURE_DESC_st {
  CUaddress_mode addressMode[3];
  CUfilter_mode filterMode;
  unsigned flags, maxAnisotropy;
  CUfilter_mode mipmapFilterMode;
  float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp;
  float borderColor[4];
  int reserved[12];
} CUDA_TEXTURE_DESC;

typedef struct CUDA_RESOURCE_VIEW_DESC_st {
  CUresourceViewFormat format;
  size_t width, height, depth;
  unsigned firstMipmapLevel, lastMipmapLevel, firstLayer, lastLayer;
  unsigned reserved[16];
} CUDA_RESOURCE_VIEW_DESC;

typedef struct CUDA_ARRAY_SPARSE_PROPERTIES_st {
  struct {
    unsigned width, height, depth; /* in elements */
  } tileExtent;
  unsigned miptailFirstLevel;
  unsigned long long miptailSize;
  unsigned flags;
  unsigned reserved[4];
} CUDA_ARRAY_SPARSE_PROPERTIES;

typedef struct CUarrayMapInfo_st {
  CUresourcetype resourceType;
  union {
    CUmipmappedArray mipmap;
    CUarray array;
  } resource;
  CUarraySparseSubresourceType subresourceType;
  union {
    struct {
      unsigned level, layer;
      unsigned offsetX, offsetY, offsetZ, extentWidth, extentHeight, extentDepth; /* in elements */
    } sparseLevel;
    struct {
      unsigned layer;
      unsigned long long offset, size;
    } miptail;
  } subresource;
  CUmemOperationType memOperationType;
  CUmemHandleType memHandleType;
  union {
    CUmemGenericAllocationHandle memHandle;
  } memHandle;
  unsigned long long offset;
  unsigned deviceBitMask, flags;
  unsigned reserved[2];
} CUarrayMapInfo;

#endif
