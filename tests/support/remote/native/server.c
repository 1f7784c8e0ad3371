/* The server's half of the tests' carrier: carrier-server --port PORT listens on 127.0.0.1 (port 0: any free one), says
 * "listening on PORT" and serves each connection in a child that is forked before anything is asked of the driver. It
 * uses whatever libcuda.so.1 it finds. Children end with their connection, and with it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sim_api.h"
#include "carrier.h"

struct request {
  const char *at;
  size_t left;
  bool bad;          /* more was taken than there is */
  const char *texts; /* what take_text has copied out, to be freed with the request */
};

struct reply {
  char *bytes;
  size_t used, room;
};

struct served {
  CUresult (*call)(struct request *, struct reply *);
  bool synchronises; /* and brings the errors of earlier calls */
};

/* ---- a request's parts, and its reply's -------------------------------------------------------------------------- */

static void take(struct request *request, void *to, size_t bytes) {
  memset(to, 0, bytes);
  request->bad |= bytes > request->left;
  if (request->bad)
    return;
  memcpy(to, request->at, bytes);
  request->at += bytes;
  request->left -= bytes;
}

/* NULL if there is none. The client sends no NUL, and a request has one text at most. */
static const char *take_text(struct request *request) {
  uint32_t length;
  take(request, &length, sizeof length);
  if (length == NO_TEXT || request->bad)
    return NULL;
  request->bad |= length > request->left || request->texts;
  if (request->bad)
    return NULL;
  char *text = strndup(request->at, length);
  request->at += length;
  request->left -= length;
  request->bad |= text == NULL;
  return request->texts = text;
}

/* How many bytes the client wants of what an answer has; 0: it passed NULL. */
static size_t take_wanted(struct request *request, size_t most) {
  uint32_t wanted;
  take(request, &wanted, sizeof wanted);
  return wanted < most ? wanted : most;
}

static void give(struct reply *reply, const void *from, size_t bytes) {
  if (reply->room - reply->used < bytes) {
    size_t room = reply->used + bytes + 4096;
    char *more = realloc(reply->bytes, room);
    if (more == NULL)
      exit(1);
    reply->bytes = more;
    reply->room = room;
  }
  memcpy(reply->bytes + reply->used, from, bytes);
  reply->used += bytes;
}

#include "carrier_server.h"

/* ---- calls that are not of calls.txt ----------------------------------------------------------------------------- */

static CUresult serve_load(struct request *request, struct reply *reply, bool library) {
  void *made = NULL;
  char *image = malloc(request->left + 1); /* a text without its NUL would be read beyond its end */
  if (image == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(image, request->at, request->left);
  image[request->left] = '\0';
  CUresult result = library ? cuLibraryLoadData((CUlibrary *)&made, image, NULL, NULL, 0, NULL, NULL, 0)
                            : cuModuleLoadData((CUmodule *)&made, image);
  give(reply, &made, sizeof made);
  free(image);
  return result;
}
static CUresult serve_load_module(struct request *request, struct reply *reply) {
  return serve_load(request, reply, false);
}
static CUresult serve_load_library(struct request *request, struct reply *reply) {
  return serve_load(request, reply, true);
}

static CUresult serve_layout(struct request *request, struct reply *reply) {
  CUfunction function;
  take(request, &function, sizeof function);
  for (size_t i = 0; !request->bad && i < PARAMETERS_MAX; i++) {
    size_t offset = 0, size = 0;
    CUresult result = cuFuncGetParamInfo(function, i, &offset, &size);
    if (result == CUDA_ERROR_INVALID_HANDLE)
      result = cuKernelGetParamInfo((CUkernel)function, i, &offset, &size);
    if (result)
      return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result; /* the end of the parameters */
    struct layout one = {(uint32_t)offset, (uint32_t)size};
    give(reply, &one, sizeof one);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

static CUresult serve_launch(struct request *request, struct reply *reply) {
  struct launch launch;
  CUlaunchAttribute attributes[ATTRIBUTES_MAX];
  char arguments[ARGUMENTS_MAX] __attribute__((aligned(16)));
  (void)reply;
  take(request, &launch, sizeof launch);
  if (request->bad || launch.attributes > ATTRIBUTES_MAX || launch.bytes > ARGUMENTS_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (launch.attributes)
    take(request, attributes, launch.attributes * sizeof attributes[0]);
  take(request, arguments, launch.bytes);
  if (request->bad)
    return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = launch.bytes;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CUlaunchConfig config = {.gridDimX = launch.grid[0],
                           .gridDimY = launch.grid[1],
                           .gridDimZ = launch.grid[2],
                           .blockDimX = launch.block[0],
                           .blockDimY = launch.block[1],
                           .blockDimZ = launch.block[2],
                           .sharedMemBytes = launch.shared,
                           .hStream = (CUstream)(uintptr_t)launch.stream,
                           .attrs = attributes,
                           .numAttrs = launch.attributes};
  CUfunction function = (CUfunction)(uintptr_t)launch.function;
  if (launch.attributes)
    return cuLaunchKernelEx(&config, function, NULL, bytes ? extra : NULL);
  return cuLaunchKernel(function, config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY,
                        config.blockDimZ, config.sharedMemBytes, config.hStream, NULL, bytes ? extra : NULL);
}

static bool captures(CUstream stream) {
  CUstreamCaptureStatus status = 0;
  return cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != 0;
}

static CUresult serve_copy_in(struct request *request, struct reply *reply) {
  struct copy copy;
  (void)reply;
  take(request, &copy, sizeof copy);
  if (request->bad || request->left != copy.bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (!copy.in_stream)
    return cuMemcpyHtoD_v2(copy.device, request->at, copy.bytes);
  /* What is captured would be read after the request is gone. Memory that is not pinned is read before the call ends. */
  CUstream stream = (CUstream)(uintptr_t)copy.stream;
  return captures(stream) ? CUDA_ERROR_NOT_SUPPORTED
                          : cuMemcpyHtoDAsync_v2(copy.device, request->at, copy.bytes, stream);
}

static CUresult serve_copy_out(struct request *request, struct reply *reply) {
  struct copy copy;
  take(request, &copy, sizeof copy);
  if (request->bad || copy.bytes > PIECE)
    return CUDA_ERROR_INVALID_VALUE;
  char *host = malloc(copy.bytes + 1);
  CUstream stream = (CUstream)(uintptr_t)copy.stream;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (host && copy.in_stream) {
    result = captures(stream) ? CUDA_ERROR_NOT_SUPPORTED : cuMemcpyDtoHAsync_v2(host, copy.device, copy.bytes, stream);
    result = result ? result : cuStreamSynchronize(stream);
  } else if (host) {
    result = cuMemcpyDtoH_v2(host, copy.device, copy.bytes);
  }
  if (result == CUDA_SUCCESS)
    give(reply, host, copy.bytes);
  free(host);
  return result;
}

static CUresult serve_pin(struct request *request, struct reply *reply) {
  size_t bytes;
  void *made = NULL;
  take(request, &bytes, sizeof bytes);
  CUresult result = request->bad ? CUDA_ERROR_INVALID_VALUE : cuMemAllocHost_v2(&made, bytes);
  if (result == CUDA_SUCCESS)
    memset(made, 1, bytes); /* as much memory is really used here as there */
  give(reply, &made, sizeof made);
  return result;
}

static CUresult serve_unpin(struct request *request, struct reply *reply) {
  void *made;
  (void)reply;
  take(request, &made, sizeof made);
  return request->bad ? CUDA_ERROR_INVALID_VALUE : cuMemFreeHost(made);
}

static const struct served own[] = {{serve_load_module, false}, {serve_load_library, false}, {serve_layout, false},
                                    {serve_launch, false},      {serve_copy_in, true},       {serve_copy_out, true},
                                    {serve_pin, false},         {serve_unpin, false}};

/* ---- a connection ------------------------------------------------------------------------------------------------ */

static const struct served *find(unsigned op) {
  if (op > OP_NONE && op < OP_OWN)
    return &served[op];
  return op >= OP_OWN && op - OP_OWN < sizeof own / sizeof own[0] ? &own[op - OP_OWN] : NULL;
}

static void make_current(uint64_t context) {
  CUcontext current = NULL;
  if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && (uint64_t)(uintptr_t)current != context)
    cuCtxSetCurrent((CUcontext)(uintptr_t)context);
}

/* Serves one request. False: the connection is gone, or what came is none. */
static bool serve_one(struct incoming *in, struct reply *reply, CUresult *pending) {
  static char *body;
  static size_t room;
  struct header header;
  if (!receive(in, &header, sizeof header) || header.bytes > MESSAGE_MAX)
    return false;
  const struct served *one = find(header.op);
  if (room < header.bytes) {
    free(body);
    room = header.bytes;
    body = malloc(room);
  }
  if (one == NULL || (room && body == NULL) || !receive(in, body, header.bytes))
    return false;
  struct request request = {.at = body, .left = header.bytes};
  reply->used = 0;
  make_current(header.context);
  CUresult result = one->call(&request, reply);
  free((void *)(uintptr_t)request.texts);
  if (!header.waits) {
    *pending = *pending ? *pending : result;
    return true;
  }
  if (one->synchronises && result == CUDA_SUCCESS) {
    result = *pending;
    *pending = CUDA_SUCCESS;
  }
  struct answer answer = {(int32_t)result, result ? 0 : (uint32_t)reply->used};
  struct iovec parts[] = {{&answer, sizeof answer}, {reply->bytes, answer.bytes}};
  return transmit(in->fd, parts, 2);
}

static void serve(int fd) {
  static struct incoming in;
  struct reply reply = {0};
  CUresult pending = CUDA_SUCCESS;
  char magic[MAGIC_BYTES];
  int one = 1;
  in.fd = fd;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (receive(&in, magic, sizeof magic) && memcmp(magic, CARRIER_MAGIC, sizeof magic) == 0)
    while (serve_one(&in, &reply, &pending)) {
    }
  exit(0);
}

int main(int argc, char **argv) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int one = 1;
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    puts(CARRIER_VERSION);
    return 0;
  }
  if (argc != 3 || strcmp(argv[1], "--port") != 0) {
    fprintf(stderr, "usage: carrier-server --port PORT | --version\n");
    return 2;
  }
  address.sin_port = htons((uint16_t)atoi(argv[2]));
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64) ||
      getsockname(listener, (struct sockaddr *)&address, &length)) {
    perror("carrier-server");
    return 1;
  }
  printf("listening on %u\n", ntohs(address.sin_port));
  fflush(stdout);
  signal(SIGCHLD, SIG_IGN);
  pid_t parent = getpid();
  for (;;) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
      continue;
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(listener);
      signal(SIGCHLD, SIG_DFL);
      if (getppid() == parent)
        serve(fd);
      _exit(1);
    }
    close(fd);
  }
}
