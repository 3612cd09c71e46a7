/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver of straw, built as libcuda.so.1 or libnvidia-ml.so.1: every function of the hook table writes down its name
 * and what it was given, and answers a number of its own.  With STUB_SECOND it looks, at cuInit, for its own parts in
 * another library, as the driver's loaders do.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct stub_call {
	const char *name;
	long argument[12];
};
__attribute__((visibility("default"))) struct stub_call stub_last;

static long note(const char *name, long code, const long argument[12])
{
	const char *second = getenv("STUB_SECOND");
	stub_last.name = name;
	memcpy(stub_last.argument, argument, sizeof stub_last.argument);
	if (second && !strcmp(name, "cuInit")) {
		long (*init)(long) = (long (*)(long))dlsym(dlopen(second, RTLD_NOW), "cuInit");
		return init ? init(argument[0]) : 999;
	}
	return code;
}

#define STUB(name, class, params, args)                                                                                   \
	__attribute__((visibility("default"))) long name(long a, long b, long c, long d, long e, long f, long g, long h,  \
							 long i, long j, long k, long l)                                  \
	{                                                                                                                 \
		return note(#name, 2000 + __COUNTER__, (const long[12]){a, b, c, d, e, f, g, h, i, j, k, l});             \
	}
#define CU_HOOK STUB
#define NVML_HOOK STUB
#define CU_CALL(name, params)
#define NVML_CALL(name, params)
#include "hooks.def"
