/* SPDX-License-Identifier: Apache-2.0
 *
 * Asks cuGetProcAddress for names (one a line on stdin), for the versions in argv and all flags, in both generations of
 * the call, and says which function came back: "NAME VERSION FLAGS GENERATION CODE STATUS OBJECT SYMBOL".
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int first_type(const char *, void **, int, unsigned long long);
typedef int second_type(const char *, void **, int, unsigned long long, int *);

static void show(const char *name, int version, int flags, int generation, int code, int status, void *found)
{
	Dl_info info = {0};
	const char *file = "-", *symbol = "-";
	if (found && dladdr(found, &info) && info.dli_fname) {
		file = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
		symbol = info.dli_sname ? info.dli_sname : "?";
	}
	printf("%s %d %d %d %d %d %s %s\n", name, version, flags, generation, code, status, file, symbol);
}

int main(int argc, char **argv)
{
	char name[128];
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	first_type *first = (first_type *)dlsym(cuda, "cuGetProcAddress");
	second_type *second = (second_type *)dlsym(cuda, "cuGetProcAddress_v2");
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
	if (!first || !second || !init || init(0))
		return 2;
	while (scanf("%127s", name) == 1)
		for (int v = 1; v < argc; v++)
			for (int flags = 0; flags <= 2; flags++) {
				void *found = NULL;
				int status = -1, code = first(name, &found, atoi(argv[v]), (unsigned)flags);
				show(name, atoi(argv[v]), flags, 1, code, status, found);
				found = NULL;
				code = second(name, &found, atoi(argv[v]), (unsigned)flags, &status);
				show(name, atoi(argv[v]), flags, 2, code, status, found);
			}
	return 0;
}
