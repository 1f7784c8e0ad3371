/* Checks a PTX text, as the driver's compiler does before it compiles. */
#ifndef SIM_PTX_CHECK_H
#define SIM_PTX_CHECK_H

#include "sim/program/ptx/ptx_syntax.h"

/* Statements, brackets, the names of instructions, and that each name is declared; not the types of operands, nor which
 * modifiers an instruction has. Errors: INVALID_PTX, UNSUPPORTED_PTX_VERSION, OUT_OF_MEMORY. log: on an error the
 * message, with its line. */
CUresult sim_ptx_check(const char *text, char log[SIM_PTX_LOG]);

#endif
