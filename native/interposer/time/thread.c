#include "interposer/time/thread.h"

__thread bool gs_called_back GS_TLS_MODEL;
__thread uint32_t gs_claimed GS_TLS_MODEL;
__thread struct gs_wait gs_wait GS_TLS_MODEL;
