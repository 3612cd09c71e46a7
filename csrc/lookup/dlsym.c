/* SPDX-License-Identifier: Apache-2.0
 *
 * dlsym and dlvsym.  If a program looks up a driver or NVML function of the hook table, and would get the driver's own,
 * it gets our hook instead.  Every other look-up goes to the real function unchanged.
 *
 * The real dlsym tells RTLD_NEXT and RTLD_DEFAULT by its return address.  So the exported functions are assembly:
 * they ask gl_decide what to do and then *jump* to the real one with the caller's registers, whatever the compiler
 * or sanitizer does to C.  For any name outside the table gl_decide calls no libc function: sanitizers and
 * allocators come here before libc is ready.  Built without sanitizers (see Makefile).
 */
#include <dlfcn.h>

#include "shim.h"

/* The result of gl_decide for the stubs: two registers. */
struct answer {
	void *value;
	uintptr_t use_value; /* 0: jump to the real function */
};

typedef void *dlsym_type(void *, const char *);
typedef int dladdr_type(const void *, Dl_info *);

__attribute__((used)) void *gl_real_dlsym, *gl_real_dlvsym;

/* The driver's libraries look up their own functions by name too and must find the driver's. */
static bool is_driver(const void *caller)
{
	Dl_info info;
	dladdr_type *find = (dladdr_type *)gl_elf_libc_symbol("dladdr");
	if (!find || !find(caller, &info) || !info.dli_fname)
		return false;
	const char *base = info.dli_fname;
	for (const char *p = base; *p; p++)
		if (*p == '/')
			base = p + 1;
	return gl_begins(base, "libcuda.so") || gl_begins(base, "libnvidia-") || gl_begins(base, "libcuda_loader") ||
	       gl_begins(base, "libcudadebugger") || gl_begins(base, "libdxcore");
}

static bool same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static struct answer look_up_hook(void *handle, const char *name, int id, const void *caller)
{
	struct answer pass = {NULL, 0}, hook = {gl_hook_address(id), 1};
	dlsym_type *real = (dlsym_type *)gl_real_dlsym;
	if (is_driver(caller))
		return pass;
	bool there = gl_loaded(id) && gl_has((enum gl_hook_id)id);
	void *found = handle == RTLD_NEXT ? hook.value : real(handle, name);
	if (!found) /* dlerror() has the reason; RTLD_DEFAULT always finds us, unless we were not loaded by preloading */
		return there && handle == RTLD_DEFAULT ? hook : (struct answer){NULL, 1};
	if (found != hook.value)
		return there && found == gl_real[id] ? hook : (struct answer){found, 1}; /* else another library's */
	if (there)
		return hook;
	/* The global scope, where we come first: the symbol that a program would find without us.  On failure dlerror()
	 * has the reason. */
	return (struct answer){real(RTLD_NEXT, name), 1};
}

/* The next library behind the caller's defines dlsym too: another preloaded library, which takes it over. */
static bool another_is_next(const char *name, const void *caller, const void *ours)
{
	Dl_info info;
	dladdr_type *find = (dladdr_type *)gl_elf_libc_symbol("dladdr");
	return find && find(caller, &info) && gl_elf_next_is_foreign(info.dli_fbase, name, ours);
}

/* dlsym and dlvsym themselves, as foreign-function interfaces and other preloaded libraries ask for them: given
 * libc's own, their callers would get the driver's pointers.  Ours never calls on to another library's dlsym, so a
 * chain of such libraries cannot be endless. */
static struct answer look_up_look_up(void *handle, const char *name, const void *caller, bool versioned)
{
	struct answer pass = {NULL, 0}, ours = {name[2] == 'v' ? (void *)dlvsym : (void *)dlsym, 1};
	if (handle == RTLD_NEXT) /* ours has no version, so a look-up with a version would miss it */
		return !versioned && another_is_next(name, caller, ours.value) ? pass : ours;
	void *found = ((dlsym_type *)gl_real_dlsym)(handle, name);
	return found && (found == gl_real_dlsym || found == gl_real_dlvsym || found == ours.value) ? ours : pass;
}

static struct answer decide(void *handle, const char *name, const void *caller, bool versioned)
{
	struct answer pass = {NULL, 0};
	if (!gl_real_dlsym)
		gl_real_dlsym = gl_elf_libc_symbol("dlsym");
	if (!gl_real_dlvsym)
		gl_real_dlvsym = gl_elf_libc_symbol("dlvsym");
	if (!name || !gl_real_dlsym)
		return gl_real_dlsym ? pass : (struct answer){NULL, 1};
	if (name[0] == 'd' && (same(name, "dlsym") || same(name, "dlvsym")))
		return look_up_look_up(handle, name, caller, versioned);
	if (!(name[0] == 'c' && name[1] == 'u') && !(name[0] == 'n' && name[1] == 'v'))
		return pass;
	int id = gl_hook_by_name(name);
	return id < 0 ? pass : look_up_hook(handle, name, id, caller);
}

__attribute__((used)) struct answer gl_decide(void *handle, const char *name, const void *caller)
{
	return decide(handle, name, caller, false);
}

/* dlvsym: the driver's symbols have no versions, so a versioned look-up of one finds nothing without us, and ours
 * have none either; what matters is that the answer is never the driver's own pointer. */
__attribute__((used)) struct answer gl_decide_versioned(void *handle, const char *name, const void *caller)
{
	struct answer answer = decide(handle, name, caller, true);
	if (!answer.use_value && !gl_real_dlvsym)
		return (struct answer){NULL, 1}; /* musl */
	return answer;
}

#if defined(__x86_64__)
#define STUB(symbol, decide, real)                                                          \
	__asm__(".text\n.p2align 4\n.globl " #symbol "\n.type " #symbol ",@function\n" #symbol ":\n"         \
		".cfi_startproc\nendbr64\n"                                                                  \
		"push %rdi\n.cfi_adjust_cfa_offset 8\npush %rsi\n.cfi_adjust_cfa_offset 8\n"                 \
		"push %rdx\n.cfi_adjust_cfa_offset 8\n"                                                      \
		"mov 24(%rsp), %rdx\n"                                                                       \
		"call " #decide "\n"                                                                         \
		"mov %rdx, %rcx\n"                                                                           \
		"pop %rdx\n.cfi_adjust_cfa_offset -8\npop %rsi\n.cfi_adjust_cfa_offset -8\n"                 \
		"pop %rdi\n.cfi_adjust_cfa_offset -8\n"                                                      \
		"test %rcx, %rcx\njnz 1f\n"                                                                  \
		"jmp *" #real "(%rip)\n1: ret\n.cfi_endproc\n.size " #symbol ", .-" #symbol "\n")
#elif defined(__aarch64__)
#define STUB(symbol, decide, real)                                                          \
	__asm__(".text\n.p2align 4\n.globl " #symbol "\n.type " #symbol ",%function\n" #symbol ":\n"         \
		".cfi_startproc\nhint #34\n"                                                                 \
		"stp x29, x30, [sp, #-48]!\n.cfi_adjust_cfa_offset 48\n"                                     \
		".cfi_rel_offset x30, 8\nstp x0, x1, [sp, #16]\nstr x2, [sp, #32]\n"                         \
		"mov x2, x30\nbl " #decide "\n"                                                              \
		"mov x9, x0\nmov x10, x1\n"                                                                  \
		"ldr x2, [sp, #32]\nldp x0, x1, [sp, #16]\nldp x29, x30, [sp], #48\n"                        \
		".cfi_adjust_cfa_offset -48\n.cfi_restore x30\n"                                             \
		"cbnz x10, 1f\n"                                                                             \
		"adrp x16, " #real "\nldr x16, [x16, :lo12:" #real "]\nbr x16\n"                             \
		"1: mov x0, x9\nret\n.cfi_endproc\n.size " #symbol ", .-" #symbol "\n")
#else
#error "this processor needs its own look-up stub"
#endif

STUB(dlsym, gl_decide, gl_real_dlsym);
STUB(dlvsym, gl_decide_versioned, gl_real_dlvsym);
