/* The client's half of the tests' carrier: libcuda.so.1 of a program whose device is elsewhere. CARRIER_SERVER=HOST:PORT
 * says where its server is, by IPv4 address. A process has one connection, from its cuInit on; a child of fork has none.
 * When the connection is gone, every call returns CUDA_ERROR_DEVICE_UNAVAILABLE. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <elf.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sim_api.h"
#include "carrier.h"
#include "carrier_table.h"

enum {
  BODY_MAX = ARGUMENTS_MAX + 4096,
  WANTED_MAX = 8,
  STACK_MAX = 32,
  FATBIN = (int)0xba55ed50,
  WRAPPER = 0x466243b1
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static struct incoming in = {.fd = -1};
static pid_t owner;
static bool lost;
static __thread CUcontext stack[STACK_MAX]; /* current contexts of this thread, the latest at `depth` */
static __thread int depth;

/* ---- a request and its answer ------------------------------------------------------------------------------------ */

struct call {
  struct header header;
  bool bad;
  const void *data; /* goes after the body */
  size_t used, data_bytes, nwanted;
  struct iovec wanted[WANTED_MAX]; /* where the answer goes */
  char body[BODY_MAX];
};

static void begin(struct call *call, uint16_t op) {
  call->header = (struct header){.op = op, .context = (uint64_t)(uintptr_t)stack[depth]};
  call->bad = false;
  call->data = NULL;
  call->used = call->data_bytes = call->nwanted = 0;
}

static void put(struct call *call, const void *from, size_t bytes) {
  call->bad |= from == NULL || bytes > BODY_MAX - call->used;
  if (call->bad)
    return;
  memcpy(call->body + call->used, from, bytes);
  call->used += bytes;
}

static void put_text(struct call *call, const char *text) {
  uint32_t length = text ? (uint32_t)strlen(text) : NO_TEXT;
  put(call, &length, sizeof length);
  if (text)
    put(call, text, length);
}

/* Nothing is wanted where `to` is NULL. */
static void want(struct call *call, void *to, size_t bytes) {
  uint32_t wanted = to ? (uint32_t)bytes : 0;
  put(call, &wanted, sizeof wanted);
  if (wanted)
    call->wanted[call->nwanted++] = (struct iovec){to, bytes};
}

static CUresult ready(const struct call *call) {
  if (call->bad)
    return CUDA_ERROR_INVALID_VALUE;
  if (lost)
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  return in.fd < 0 || owner != getpid() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

static CUresult gone(void) {
  lost = true;
  shutdown(in.fd, SHUT_RDWR);
  return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

static bool send_it(struct call *call) {
  call->header.bytes = (uint32_t)(call->used + call->data_bytes);
  struct iovec parts[] = {{&call->header, sizeof call->header},
                          {call->body, call->used},
                          {(void *)(uintptr_t)call->data, call->data_bytes}};
  return transmit(in.fd, parts, sizeof parts / sizeof parts[0]);
}

/* Puts the answer where it is wanted, of which iov_len then says how much came. Returns false if the connection is gone, or says what was not asked for. */
static bool receive_it(struct call *call, CUresult *result) {
  struct answer answer;
  if (!receive(&in, &answer, sizeof answer))
    return false;
  *result = (CUresult)answer.result;
  size_t left = answer.bytes;
  for (size_t i = 0; i < call->nwanted; i++) {
    size_t part = call->wanted[i].iov_len < left ? call->wanted[i].iov_len : left;
    if (!receive(&in, call->wanted[i].iov_base, part))
      return false;
    call->wanted[i].iov_len = part;
    left -= part;
  }
  return left == 0;
}

static CUresult go_locked(struct call *call) {
  CUresult result = ready(call);
  return result ? result : send_it(call) ? CUDA_SUCCESS : gone();
}

static CUresult answer_locked(struct call *call) {
  CUresult result = ready(call);
  call->header.waits = 1;
  if (result)
    return result;
  return send_it(call) && receive_it(call, &result) ? result : gone();
}

static CUresult go(struct call *call) {
  pthread_mutex_lock(&lock);
  CUresult result = go_locked(call);
  pthread_mutex_unlock(&lock);
  return result;
}

static CUresult answer(struct call *call) {
  pthread_mutex_lock(&lock);
  CUresult result = answer_locked(call);
  pthread_mutex_unlock(&lock);
  return result;
}

#include "carrier_client.h"

/* ---- start ------------------------------------------------------------------------------------------------------- */

static int connected(void) {
  const char *server = getenv("CARRIER_SERVER");
  struct sockaddr_in address = {.sin_family = AF_INET};
  char host[64];
  unsigned port;
  int one = 1, fd = -1;
  if (server && sscanf(server, "%63[^:]:%u", host, &port) == 2 && port < 65536 &&
      inet_pton(AF_INET, host, &address.sin_addr) == 1)
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return -1;
  address.sin_port = htons((uint16_t)port);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
      send(fd, CARRIER_MAGIC, MAGIC_BYTES, MSG_NOSIGNAL) == MAGIC_BYTES)
    return fd;
  close(fd);
  return -1;
}

CUresult cuInit(unsigned int Flags) {
  pthread_mutex_lock(&lock);
  if (in.fd >= 0 && owner != getpid()) { /* the parent's */
    close(in.fd);
    in = (struct incoming){.fd = -1};
    lost = false;
  }
  if (in.fd < 0) {
    in.fd = connected();
    owner = getpid();
  }
  bool here = in.fd >= 0;
  pthread_mutex_unlock(&lock);
  return here ? carrier_cuInit(Flags) : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus) {
  const struct carrier_name *found = NULL;
  (void)flags; /* streams of their own for threads are not supported: the plain function is found */
  if (symbol == NULL || pfn == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (const struct carrier_name *one = carrier_names; one->base; one++)
    if (strcmp(one->base, symbol) == 0 && one->version <= cudaVersion && (!found || one->version > found->version))
      found = one;
  *pfn = found ? (void *)(uintptr_t)found->function : NULL;
  if (symbolStatus)
    *symbolStatus = (CUdriverProcAddressQueryResult)(found ? 0 : 1);
  return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

/* ---- contexts of threads ----------------------------------------------------------------------------------------- */

CUresult cuCtxSetCurrent(CUcontext ctx) {
  CUresult result = carrier_cuCtxSetCurrent(ctx);
  if (result == CUDA_SUCCESS)
    stack[depth] = ctx;
  return result;
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
  if (pctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pctx = stack[depth];
  return lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  if (depth + 1 == STACK_MAX)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = carrier_cuCtxSetCurrent(ctx);
  if (result == CUDA_SUCCESS)
    stack[++depth] = ctx;
  return result;
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
  if (stack[depth] == NULL)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx)
    *pctx = stack[depth];
  stack[depth] = NULL;
  depth -= depth > 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  CUresult result = depth + 1 < STACK_MAX ? carrier_cuCtxCreate_v2(pctx, flags, dev) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    depth += stack[depth] != NULL;
    stack[depth] = *pctx;
  }
  return result;
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
  return ctxCreateParams ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  CUresult result = carrier_cuCtxDestroy_v2(ctx);
  if (result == CUDA_SUCCESS && stack[depth] == ctx)
    cuCtxPopCurrent_v2(NULL);
  return result;
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static size_t image_bytes(const unsigned char *image) {
  int magic;
  memcpy(&magic, image, sizeof magic);
  if (magic == FATBIN) {
    uint16_t before;
    uint64_t bytes;
    memcpy(&before, image + 6, sizeof before);
    memcpy(&bytes, image + 8, sizeof bytes);
    return bytes < MESSAGE_MAX ? before + bytes : 0;
  }
  if (memcmp(image, ELFMAG, SELFMAG) != 0)
    return strlen((const char *)image) + 1;
  Elf64_Ehdr elf;
  memcpy(&elf, image, sizeof elf);
  uint64_t sections = elf.e_shoff + (uint64_t)elf.e_shnum * elf.e_shentsize;
  uint64_t segments = elf.e_phoff + (uint64_t)elf.e_phnum * elf.e_phentsize;
  return sections > segments ? sections : segments;
}

static CUresult load(uint16_t op, void *made, const void *image) {
  struct call call;
  int magic;
  if (made == NULL || image == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(&magic, image, sizeof magic);
  if (magic == WRAPPER)
    memcpy(&image, (const char *)image + 8, sizeof image);
  begin(&call, op);
  call.data = image;
  call.data_bytes = image_bytes(image);
  call.wanted[call.nwanted++] = (struct iovec){made, sizeof(void *)};
  return call.data_bytes && call.data_bytes <= MESSAGE_MAX ? answer(&call) : CUDA_ERROR_INVALID_IMAGE;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) { return load(OP_LOAD_MODULE, module, image); }

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues) {
  (void)numOptions, (void)options, (void)optionValues; /* nothing is compiled, and no log comes back */
  return cuModuleLoadData(module, image);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
  (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions;
  (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
  return load(OP_LOAD_LIBRARY, library, code);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static struct known {
  struct known *next;
  CUfunction function;
  size_t count;
  struct layout parameters[];
} *known; /* kernels that were launched; under the lock */

static CUresult forget(CUresult result) {
  pthread_mutex_lock(&lock);
  while (known) {
    struct known *next = known->next;
    free(known);
    known = next;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

CUresult cuModuleUnload(CUmodule hmod) { return forget(carrier_cuModuleUnload(hmod)); }
CUresult cuLibraryUnload(CUlibrary library) { return forget(carrier_cuLibraryUnload(library)); }

static CUresult layout_of(CUfunction f, const struct known **found) {
  struct layout parameters[PARAMETERS_MAX];
  struct call call;
  for (*found = known; *found; *found = (*found)->next)
    if ((*found)->function == f)
      return CUDA_SUCCESS;
  begin(&call, OP_LAYOUT);
  put(&call, &f, sizeof f);
  call.wanted[call.nwanted++] = (struct iovec){parameters, sizeof parameters};
  CUresult result = answer_locked(&call);
  size_t bytes = result ? 0 : call.wanted[0].iov_len;
  struct known *one = result ? NULL : malloc(sizeof *one + bytes);
  if (one == NULL)
    return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
  *one = (struct known){.next = known, .function = f, .count = bytes / sizeof *parameters};
  memcpy(one->parameters, parameters, bytes);
  *found = known = one;
  return CUDA_SUCCESS;
}

/* The arguments as the kernel gets them. */
static CUresult pack(CUfunction f, void **params, void **extra, char *to, uint32_t *bytes) {
  const struct known *kernel;
  *bytes = 0;
  for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2)
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      *bytes = *(size_t *)extra[i + 1] <= ARGUMENTS_MAX ? (uint32_t)*(size_t *)extra[i + 1] : 0;
  for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2)
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      memcpy(to, extra[i + 1], *bytes);
  if (extra)
    return CUDA_SUCCESS;
  CUresult result = layout_of(f, &kernel);
  for (size_t i = 0; result == CUDA_SUCCESS && i < kernel->count; i++) {
    struct layout one = kernel->parameters[i];
    if (params == NULL || params[i] == NULL || one.size > ARGUMENTS_MAX || one.offset > ARGUMENTS_MAX - one.size)
      return CUDA_ERROR_INVALID_VALUE;
    memcpy(to + one.offset, params[i], one.size);
    *bytes = one.offset + one.size > *bytes ? one.offset + one.size : *bytes;
  }
  return result;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) {
  struct call call;
  char arguments[ARGUMENTS_MAX] __attribute__((aligned(8)));
  if (config == NULL || config->numAttrs > ATTRIBUTES_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  struct launch launch = {.function = (uint64_t)(uintptr_t)f,
                          .stream = (uint64_t)(uintptr_t)config->hStream,
                          .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                          .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                          .shared = config->sharedMemBytes,
                          .attributes = config->numAttrs};
  pthread_mutex_lock(&lock);
  CUresult result = pack(f, kernelParams, extra, arguments, &launch.bytes);
  if (result == CUDA_SUCCESS) {
    begin(&call, OP_LAUNCH);
    put(&call, &launch, sizeof launch);
    if (launch.attributes)
      put(&call, config->attrs, launch.attributes * sizeof *config->attrs);
    put(&call, arguments, launch.bytes);
    result = go_locked(&call);
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static CUlaunchConfig shape(unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX, unsigned blockY,
                            unsigned blockZ, unsigned shared, CUstream stream) {
  return (CUlaunchConfig){gridX, gridY, gridZ, blockX, blockY, blockZ, shared, stream, NULL, 0};
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra) {
  CUlaunchConfig config = shape(gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream);
  return cuLaunchKernelEx(&config, f, kernelParams, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                   unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream, void **kernelParams) {
  CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
  CUlaunchConfig config = shape(gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream);
  config.attrs = &cooperative;
  config.numAttrs = 1;
  return cuLaunchKernelEx(&config, f, kernelParams, NULL);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static CUresult copy_in(CUdeviceptr device, const void *host, size_t bytes, CUstream stream, bool in_stream) {
  struct call call;
  CUresult result = CUDA_SUCCESS;
  if (host == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t at = 0, part; result == CUDA_SUCCESS && (at < bytes || at == 0); at += part) {
    part = bytes - at < PIECE ? bytes - at : PIECE;
    struct copy copy = {device + at, (uint64_t)(uintptr_t)stream, part, in_stream};
    begin(&call, OP_COPY_IN);
    put(&call, &copy, sizeof copy);
    call.data = (const char *)host + at;
    call.data_bytes = part;
    bool last = at + part == bytes;
    result = last && !in_stream ? answer(&call) : go(&call);
    if (part == 0)
      break;
  }
  return result;
}

static CUresult copy_out(void *host, CUdeviceptr device, size_t bytes, CUstream stream, bool in_stream) {
  struct call call;
  CUresult result = CUDA_SUCCESS;
  if (host == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t at = 0, part; result == CUDA_SUCCESS && (at < bytes || at == 0); at += part) {
    part = bytes - at < PIECE ? bytes - at : PIECE;
    struct copy copy = {device + at, (uint64_t)(uintptr_t)stream, part, in_stream};
    begin(&call, OP_COPY_OUT);
    put(&call, &copy, sizeof copy);
    call.wanted[call.nwanted++] = (struct iovec){(char *)host + at, part};
    result = answer(&call);
    if (part == 0)
      break;
  }
  return result;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
  return copy_in(dstDevice, srcHost, ByteCount, NULL, false);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream) {
  return copy_in(dstDevice, srcHost, ByteCount, hStream, true);
}
CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return copy_out(dstHost, srcDevice, ByteCount, NULL, false);
}
CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return copy_out(dstHost, srcDevice, ByteCount, hStream, true);
}

/* ---- pinned memory: here and, as much, at the server ------------------------------------------------------------- */

static struct pinned {
  struct pinned *next;
  void *here;
  uint64_t there;
  size_t bytes;
} *pinned; /* under the lock */

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
  struct call call;
  (void)Flags;
  struct pinned *one = pp && bytesize ? malloc(sizeof *one) : NULL;
  if (one == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  one->bytes = bytesize;
  one->here = mmap(NULL, bytesize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  begin(&call, OP_PIN);
  put(&call, &one->bytes, sizeof one->bytes);
  call.wanted[call.nwanted++] = (struct iovec){&one->there, sizeof one->there};
  pthread_mutex_lock(&lock);
  CUresult result = one->here == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : answer_locked(&call);
  if (result == CUDA_SUCCESS) {
    one->next = pinned;
    pinned = one;
    *pp = one->here;
  }
  pthread_mutex_unlock(&lock);
  if (result == CUDA_SUCCESS)
    return result;
  if (one->here != MAP_FAILED)
    munmap(one->here, bytesize);
  free(one);
  return result;
}
CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }

CUresult cuMemFreeHost(void *p) {
  struct call call;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct pinned **at = &pinned, *one;
  while (*at && (*at)->here != p)
    at = &(*at)->next;
  one = *at;
  if (one) {
    *at = one->next;
    begin(&call, OP_UNPIN);
    put(&call, &one->there, sizeof one->there);
    result = answer_locked(&call);
    munmap(one->here, one->bytes);
    free(one);
  }
  pthread_mutex_unlock(&lock);
  return result;
}
