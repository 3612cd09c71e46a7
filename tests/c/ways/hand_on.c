/* SPDX-License-Identifier: Apache-2.0
 *
 * Without a quota every hook hands its call on to its own original, arguments and answer as they are: calls each with
 * odd arguments on the driver of straw and compares.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct stub_call {
	const char *name;
	long argument[12];
};
typedef long call_type(long, long, long, long, long, long, long, long, long, long, long, long);

#define ROW(name, class, params, args) {#name, #params},
#define CU_HOOK ROW
#define NVML_HOOK ROW
#define CU_CALL(name, params)
#define NVML_CALL(name, params)
static const struct {
	const char *name, *params;
} rows[] = {
#include "hooks.def"
};

static int count(const char *params)
{
	int commas = 0;
	for (const char *p = params; *p; p++)
		commas += *p == ',';
	return strcmp(params, "(void)") ? commas + 1 : 0;
}

int main(void)
{
	int failures = 0;
	/* Below 4 GiB, so that what is passed as an int comes out the same; readable, since some look before they leap. */
	char *room = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!cuda || !nvml || room == MAP_FAILED)
		return 2;
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		void *handle = rows[i].name[0] == 'n' ? nvml : cuda;
		struct stub_call *last = dlsym(handle, "stub_last");
		call_type *call = (call_type *)dlsym(handle, rows[i].name);
		Dl_info info;
		long a[12];
		if (!call || !last || !dladdr((void *)call, &info) || !strstr(info.dli_fname, "libgpulimit")) {
			printf("%s: not the library's\n", rows[i].name);
			failures++;
			continue;
		}
		for (int n = 0; n < 12; n++)
			a[n] = (long)(room + 4096 * n + 64 * (i + 1));
		memset(last, 0, sizeof *last);
		int answer = (int)call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
		if (!last->name || strcmp(last->name, rows[i].name)) {
			printf("%s: went to %s\n", rows[i].name, last->name ? last->name : "nothing");
			failures++;
			continue;
		}
		if (answer < 2000 || answer >= 2000 + (int)(sizeof rows / sizeof *rows) || answer != 2000 + (int)i) {
			printf("%s: answered %d, not %d\n", rows[i].name, answer, 2000 + (int)i);
			failures++;
		}
		for (int n = 0; n < count(rows[i].params); n++)
			if ((int)last->argument[n] != (int)a[n]) {
				printf("%s: argument %d differs\n", rows[i].name, n);
				failures++;
			}
	}
	return failures != 0;
}
