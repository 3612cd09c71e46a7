/* SPDX-License-Identifier: Apache-2.0
 *
 * Support for a program without a C library, so that it runs on a node with any libc or none.  System calls return
 * negative errno.
 */
#ifndef GL_NOLIBC_H
#define GL_NOLIBC_H

#include <asm/unistd.h>
#include <stddef.h>

#if defined(__x86_64__)
static inline long bare_call(long number, long a, long b, long c, long d, long e)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}
#define BARE_START "xor %ebp, %ebp\n and $-16, %rsp\n call bare_main\n ud2\n"
#elif defined(__aarch64__)
static inline long bare_call(long number, long a, long b, long c, long d, long e)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
}
#define BARE_START "mov x29, #0\n mov x30, #0\n bl bare_main\n brk #0\n"
#else
#error "for x86-64 and aarch64"
#endif

/* Use it in the one file that defines bare_main. */
#define BARE_PROGRAM __asm__(".globl _start\n.type _start, %function\n_start:\n " BARE_START)

#define bare(number, a, b, c, d, e) \
	bare_call((number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))

_Noreturn void bare_main(void);

static inline size_t bare_length(const char *text)
{
	size_t length = 0;
	while (text[length])
		length++;
	return length;
}

#endif
