/* Included first in every file of the interposer: binds the libc functions it uses to versions that every image has. A
 * library that needs a newer version than the image's libc would prevent every program in the image from starting.
 * GLIBC_2.2.5 is the oldest version on x86-64 (of dlmopen 2.3.4), 2.17 on aarch64. */
#ifndef GPUSHARE_OLD_LIBC_H
#define GPUSHARE_OLD_LIBC_H

#if defined(__x86_64__)
__asm__(".symver dlmopen,dlmopen@GLIBC_2.3.4");
#define GS_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#elif defined(__aarch64__)
__asm__(".symver dlmopen,dlmopen@GLIBC_2.17");
#define GS_OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#endif

GS_OLD(dlopen);
GS_OLD(dlsym);
GS_OLD(dlerror);
GS_OLD(dlclose);
GS_OLD(dladdr);
GS_OLD(pthread_create);
GS_OLD(pthread_sigmask);
#undef GS_OLD

#endif
