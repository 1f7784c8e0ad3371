/* The command line of runc and crun, and the log that it names. */
#ifndef GS_ARGUMENTS_H
#define GS_ARGUMENTS_H

#include <stdbool.h>

/* The value of `--name=value`; NULL if the argument is something else. */
const char *gs_option(const char *argument, const char *name);

/* Whether this global option's value is the next argument. */
bool gs_takes_value(const char *argument);

/* The file to which the runtime must write its errors in JSON: engines show the last one to their user, and ignore
 * stderr. NULL: none. args: the arguments after the program's name, NULL-terminated. */
const char *gs_json_log(char **args);

/* Appends an error to that log. */
void gs_log_error(const char *log, const char *what);

#endif
