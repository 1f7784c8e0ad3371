/* crowd N: N processes join the grant in $GPUSHARE_GRANT_DIR at the same time. Prints how many joined and how long it
 * took (milliseconds); ends them at EOF on standard input. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct request {
  uint32_t magic, version, slot, generation;
};

struct reply {
  uint32_t magic, version, error, slot, generation;
  int32_t pid;
  char text[104];
};

static int64_t milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void join(int out) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s/grant.sock", getenv("GPUSHARE_GRANT_DIR"));
  struct request request = {.magic = 0x67734A31, .version = 1, .slot = 0xffff};
  struct reply reply = {.error = 99};
  int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  char taken = connect(sock, (struct sockaddr *)&address, sizeof address) == 0 &&
               send(sock, &request, sizeof request, 0) > 0 && recv(sock, &reply, sizeof reply, 0) > 0 &&
               reply.error == 0;
  if (write(out, &taken, 1) != 1)
    _exit(1);
  pause();
}

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 1, pipes[2], taken = 0;
  if (pipe(pipes) != 0)
    return 1;
  int64_t began = milliseconds();
  for (int i = 0; i < n; i++)
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      join(pipes[1]);
      _exit(0);
    }
  for (int i = 0; i < n; i++) {
    char one;
    if (read(pipes[0], &one, 1) != 1)
      return 1;
    taken += one;
  }
  printf("%d %lld %s\n", taken, (long long)(milliseconds() - began), getenv("GPUSHARE_GRANT_DIR"));
  fflush(stdout);
  while (read(0, pipes, 1) > 0)
    ;
  return 0;
}
