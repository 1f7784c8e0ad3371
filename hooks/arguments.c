#define _GNU_SOURCE
#include "arguments.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"

/* Global options of runc and crun whose value is the next argument. runc also accepts them with one dash. */
static const char *const global_values[] = {"root", "log",      "log-format",    "log-level",
                                            "criu", "rootless", "cgroup-manager"};

const char *gs_option(const char *argument, const char *name) {
  size_t n = strlen(name);

  return strncmp(argument, name, n) == 0 && argument[n] == '=' ? argument + n + 1 : NULL;
}

bool gs_takes_value(const char *argument) {
  argument += argument[1] == '-' ? 2 : 1;
  for (size_t i = 0; i < sizeof global_values / sizeof *global_values; i++)
    if (strcmp(argument, global_values[i]) == 0)
      return true;
  return false;
}

const char *gs_json_log(char **args) {
  const char *log = NULL, *format = "", *value;

  for (; *args && **args == '-'; args++) {
    bool apart = gs_takes_value(*args) && args[1];
    const char *name = *args + (args[0][1] == '-' ? 2 : 1);

    if (apart && strcmp(name, "log") == 0)
      log = args[1];
    else if (apart && strcmp(name, "log-format") == 0)
      format = args[1];
    else if ((value = gs_option(name, "log")))
      log = value;
    else if ((value = gs_option(name, "log-format")))
      format = value;
    args += apart;
  }
  return strcmp(format, "json") == 0 ? log : NULL;
}

void gs_log_error(const char *log, const char *what) {
  char *quoted = gs_json_string(what);
  int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);

  if (quoted && fd >= 0)
    dprintf(fd, "{\"level\":\"error\",\"msg\":%s}\n", quoted);
  if (fd >= 0)
    close(fd);
  free(quoted);
}
