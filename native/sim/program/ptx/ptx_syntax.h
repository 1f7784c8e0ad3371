/* The parts of ptx_check.c that have no statements: the place in the text, mistakes, expressions and declarations. */
#ifndef SIM_PTX_SYNTAX_H
#define SIM_PTX_SYNTAX_H

#include "api/gs_cuda_types.h"
#include "sim/program/ptx/ptx_names.h"

struct sim_ptx_checker {
  struct sim_lexer lexer;
  const char *text;
  char *log;
  CUresult result; /* of the first mistake */
  struct sim_ptx_names names;
};

enum {
  SIM_PTX_LOG = 256, /* bytes that a message may take */
  SIM_PTX_NEAR = 60  /* characters of a long word that a message shows */
};

/* Record a mistake, unless there was one before. */
__attribute__((format(printf, 4, 5))) void sim_ptx_fail(struct sim_ptx_checker *c, CUresult result, const char *at,
                                                        const char *format, ...);
void sim_ptx_fail_here(struct sim_ptx_checker *c); /* the current token is none that may stand here */

/* These return false after a mistake, or at the end of the text where more is expected. */
bool sim_ptx_next(struct sim_ptx_checker *c);
bool sim_ptx_expect(struct sim_ptx_checker *c, const char *any); /* the next token is one of these characters */
/* Anything up to one of these characters outside brackets, which becomes the current token. */
bool sim_ptx_skip_to(struct sim_ptx_checker *c, const char *end);
/* Operands or values, up to one of these characters outside brackets, which becomes the current token. */
bool sim_ptx_expressions(struct sim_ptx_checker *c, const char *end);
bool sim_ptx_name(struct sim_ptx_checker *c);       /* declares the current token */
bool sim_ptx_variables(struct sim_ptx_checker *c);  /* behind a state space, up to the semicolon */
bool sim_ptx_parameters(struct sim_ptx_checker *c); /* behind the opening bracket, up to the closing one */

bool sim_ptx_is_name(const struct sim_ptx_checker *c);
bool sim_ptx_is_number(const struct sim_ptx_checker *c);

#endif
