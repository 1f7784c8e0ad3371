/* A carrier's server that tries what it should not be able to do. It listens on 127.0.0.1:PORT and serves one
 * connection at a time: a line is a command, and so is the answer: a number, mostly an errno, or text. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char answer[65536];

static void say(const char *text) { snprintf(answer, sizeof answer, "%s", text); }
static void say_number(long number) { snprintf(answer, sizeof answer, "%ld", number); }
static void say_error(long result) { say_number(result < 0 ? errno : 0); }

static void tcp(const char *address, const char *port) {
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = four.sin_port};
  int is_six = strchr(address, ':') != NULL, made = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
  struct timeval patience = {.tv_sec = 2};

  inet_pton(AF_INET, address, &four.sin_addr);
  inet_pton(AF_INET6, address, &six.sin6_addr);
  setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  say_error(is_six ? connect(made, (struct sockaddr *)&six, sizeof six)
                   : connect(made, (struct sockaddr *)&four, sizeof four));
  close(made);
}

static void family(const char *number) {
  int made = socket(atoi(number), SOCK_STREAM, 0);

  say_error(made);
  if (made >= 0)
    close(made);
}

/* A path, or a name after @. */
static void unix_socket(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int made = socket(AF_UNIX, SOCK_STREAM, 0);

  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  if (*path == '@')
    address.sun_path[0] = 0;
  say_error(
      connect(made, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))));
  close(made);
}

static void open_file(const char *path, const char *how) {
  int flags = *how == 'r' ? O_RDONLY : *how == 'w' ? O_WRONLY : O_WRONLY | O_CREAT;
  int made = open(path, flags | O_NONBLOCK, 0644);

  say_error(made);
  if (made >= 0)
    close(made);
}

static void read_file(const char *path) {
  int file = open(path, O_RDONLY | O_NONBLOCK);
  ssize_t got = file < 0 ? -1 : read(file, answer, sizeof answer - 1);

  if (got < 0)
    say_error(got);
  else
    answer[got] = 0;
  for (char *at = answer; *at; at++)
    *at = *at == '\n' ? '|' : *at;
  if (file >= 0)
    close(file);
}

static void list(const char *path) {
  DIR *directory = opendir(path);
  struct dirent *entry;

  *answer = 0;
  while (directory && (entry = readdir(directory)))
    if (*entry->d_name != '.' && strlen(answer) + strlen(entry->d_name) + 2 < sizeof answer)
      strcat(strcat(answer, entry->d_name), " ");
  if (directory)
    closedir(directory);
  else
    say_error(-1);
}

/* What a child came to: its status, or 1000 and the signal. */
static void say_child(pid_t child) {
  int status = 0;

  if (child < 0 || waitpid(child, &status, 0) < 0)
    say_number(2000 + errno);
  else
    say_number(WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status));
}

static void eat(size_t bytes) {
  pid_t child = fork();

  if (child == 0) {
    volatile char *memory = malloc(bytes);
    if (!memory)
      _exit(ENOMEM);
    for (size_t at = 0; at < bytes; at += 4096)
      memory[at] = 1;
    _exit(0);
  }
  say_child(child);
}

static void fill(const char *path, size_t bytes) {
  pid_t child = fork();

  if (child == 0) {
    static char block[1 << 16];
    int file = open(path, O_WRONLY | O_CREAT, 0644), full = 0;
    for (size_t at = 0; at < bytes && !full; at += sizeof block)
      full = write(file, block, sizeof block) < 0 ? errno : 0;
    _exit(full);
  }
  say_child(child);
  unlink(path);
}

/* How many children live at once. */
static void forks(int wanted) {
  int made = 0;
  pid_t *children = calloc((size_t)wanted, sizeof *children);

  while (made < wanted && (children[made] = fork()) > 0)
    made++;
  if (made < wanted && children[made] == 0)
    for (;;)
      pause();
  for (int i = 0; i < made; i++) {
    kill(children[i], SIGKILL);
    waitpid(children[i], NULL, 0);
  }
  free(children);
  say_number(made);
}

/* A grandchild in a session of its own that does not listen to SIGTERM. */
static void away(void) {
  pid_t child = fork();

  if (child == 0) {
    setsid();
    signal(SIGTERM, SIG_IGN);
    if (fork() > 0)
      _exit(0);
    for (;;)
      pause();
  }
  say_child(child);
}

/* Allocates device memory in a new program; `bare`: without the environment that a grant's processes have. */
static void device(char *bare, char *libraries, char *mib) {
  static char path[4096];
  pid_t child = fork();

  snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", libraries);
  char *words[] = {"hostile", "device", mib, NULL}, *few[] = {path, NULL};
  if (child == 0) {
    execve("/proc/self/exe", words, *bare == 'b' ? few : environ);
    _exit(255);
  }
  say_child(child);
}

static int allocate(const char *mib) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
  int (*retain)(void **, int) = init ? (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain") : NULL;
  int (*current)(void *) = init ? (int (*)(void *))dlsym(driver, "cuCtxSetCurrent") : NULL;
  int (*alloc)(void *, size_t) = init ? (int (*)(void *, size_t))dlsym(driver, "cuMemAlloc_v2") : NULL;
  void *context, *memory;

  if (!driver)
    fprintf(stderr, "%s\n", dlerror());
  if (!alloc || init(0) || retain(&context, 0) || current(context))
    return 254;
  return alloc(&memory, strtoul(mib, NULL, 10) << 20);
}

static void obey(char *line) {
  char *word[4] = {"", "", "", ""}, *rest = NULL;
  int count = 0;

  for (char *one = strtok_r(line, " \r\n", &rest); one && count < 4; one = strtok_r(NULL, " \r\n", &rest))
    word[count++] = one;
  const char *what = word[0];
  say("unknown");
  if (!strcmp(what, "tcp"))
    tcp(word[1], word[2]);
  else if (!strcmp(what, "family"))
    family(word[1]);
  else if (!strcmp(what, "unix"))
    unix_socket(word[1]);
  else if (!strcmp(what, "open"))
    open_file(word[1], word[2]);
  else if (!strcmp(what, "read"))
    read_file(word[1]);
  else if (!strcmp(what, "list"))
    list(word[1]);
  else if (!strcmp(what, "mount"))
    say_error(mount("tmpfs", word[1], "tmpfs", 0, NULL));
  else if (!strcmp(what, "umount"))
    say_error(umount2(word[1], MNT_DETACH));
  else if (!strcmp(what, "remount"))
    say_error(mount(NULL, word[1], NULL, MS_REMOUNT | MS_BIND, NULL));
  else if (!strcmp(what, "chroot"))
    say_error(chroot(word[1]));
  else if (!strcmp(what, "unshare"))
    say_error(unshare((int)strtoul(word[1], NULL, 16)));
  else if (!strcmp(what, "clone"))
    say_error(syscall(SYS_clone, strtoul(word[1], NULL, 16) | SIGCHLD, NULL, NULL, NULL, 0));
  else if (!strcmp(what, "mknod"))
    say_error(mknod(word[1], S_IFCHR | 0666, makedev(atoi(word[2]), atoi(word[3]))));
  else if (!strcmp(what, "ptrace"))
    say_error(ptrace(PTRACE_ATTACH, atoi(word[1]), NULL, NULL));
  else if (!strcmp(what, "kill"))
    say_error(kill(atoi(word[1]), atoi(word[2])));
  else if (!strcmp(what, "setuid"))
    say_error(setuid(0));
  else if (!strcmp(what, "raw"))
    say_error(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
  else if (!strcmp(what, "eat"))
    eat(strtoul(word[1], NULL, 10) << 20);
  else if (!strcmp(what, "fill"))
    fill(word[1], strtoul(word[2], NULL, 10) << 20);
  else if (!strcmp(what, "forks"))
    forks(atoi(word[1]));
  else if (!strcmp(what, "away"))
    away();
  else if (!strcmp(what, "deaf"))
    say_number(signal(SIGTERM, SIG_IGN) == SIG_ERR);
  else if (!strcmp(what, "device"))
    device(word[1], word[2], word[3]);
  else if (!strcmp(what, "exit"))
    exit(atoi(word[1]));
}

int main(int argc, char **argv) {
  int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  static char line[4096];

  if (argc == 3 && !strcmp(argv[1], "device"))
    return allocate(argv[2]);
  if (argc != 2)
    return 2;
  address.sin_port = htons((uint16_t)atoi(argv[1]));
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 8) < 0) {
    perror("hostile");
    return 1;
  }
  for (;;) {
    int client = accept(listener, NULL, NULL);
    FILE *stream = client < 0 ? NULL : fdopen(client, "r");
    while (stream && fgets(line, sizeof line, stream)) {
      obey(line);
      dprintf(client, "%s\n", answer);
    }
    if (stream)
      fclose(stream);
  }
}
