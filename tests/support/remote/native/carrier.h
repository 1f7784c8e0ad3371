/* What goes over a connection of the tests' carrier, and how both ends read it. Both run on machines of one kind: numbers
 * and structures go as they are in memory. A connection begins with CARRIER_MAGIC from the client; then there are
 * requests, of which those that wait are answered, in order. */
#ifndef CARRIER_H
#define CARRIER_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "carrier_ops.h"

#define CARRIER_MAGIC "carrier2"
#define CARRIER_VERSION "tests' carrier 2"
enum {
  MAGIC_BYTES = 8,
  PIECE = 4 << 20,         /* of a copy, in one request */
  MESSAGE_MAX = 256 << 20, /* bytes after a header */
  TEXT_MAX = 256,          /* of a text that is answered */
  PARAMETERS_MAX = 1024,
  ARGUMENTS_MAX = 32768, /* bytes of a kernel's arguments */
  ATTRIBUTES_MAX = 16,
  NO_TEXT = 0xffffffffu /* length of a text that is NULL */
};

/* Calls that are not of calls.txt. */
enum { OP_LOAD_MODULE = OP_OWN, OP_LOAD_LIBRARY, OP_LAYOUT, OP_LAUNCH, OP_COPY_IN, OP_COPY_OUT, OP_PIN, OP_UNPIN };

struct header {
  uint32_t bytes; /* after this */
  uint16_t op, waits;
  uint64_t context; /* current in the calling thread */
};

struct answer {
  int32_t result;
  uint32_t bytes; /* after this; 0 if the result is an error */
};

struct layout { /* answer of OP_LAYOUT, for each parameter */
  uint32_t offset, size;
};

struct launch { /* followed by the attributes and the arguments, as the kernel gets them */
  uint64_t function, stream;
  uint32_t grid[3], block[3], shared, attributes, bytes;
};

struct copy { /* followed by the bytes, if they go in */
  uint64_t device, stream, bytes, in_stream;
};

/* A connection's bytes as they come. */
struct incoming {
  int fd;
  size_t at, end;
  char kept[1 << 16];
};

/* False: the connection is gone. */
static inline bool receive(struct incoming *in, void *to, size_t bytes) {
  char *at = to;
  while (bytes) {
    if (in->at == in->end) {
      bool large = bytes >= sizeof in->kept;
      ssize_t got = recv(in->fd, large ? at : in->kept, large ? bytes : sizeof in->kept, 0);
      if (got < 0 && errno == EINTR)
        continue;
      if (got <= 0)
        return false;
      in->at = 0;
      in->end = large ? 0 : (size_t)got;
      at += large ? got : 0;
      bytes -= large ? (size_t)got : 0;
      continue;
    }
    size_t part = in->end - in->at < bytes ? in->end - in->at : bytes;
    memcpy(at, in->kept + in->at, part);
    in->at += part;
    at += part;
    bytes -= part;
  }
  return true;
}

/* Sends all of the parts, which it changes. False: the connection is gone. */
static inline bool transmit(int fd, struct iovec *parts, size_t count) {
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
  while (message.msg_iovlen) {
    if (message.msg_iov->iov_len == 0) {
      message.msg_iov++;
      message.msg_iovlen--;
      continue;
    }
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent <= 0)
      return false;
    while (sent) {
      size_t part = (size_t)sent < message.msg_iov->iov_len ? (size_t)sent : message.msg_iov->iov_len;
      message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + part;
      message.msg_iov->iov_len -= part;
      sent -= (ssize_t)part;
      if (message.msg_iov->iov_len == 0 && sent) {
        message.msg_iov++;
        message.msg_iovlen--;
      }
    }
  }
  return true;
}

#endif
