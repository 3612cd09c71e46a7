/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program sees of libgpupath.so: main's third argument, environ and getenv must agree, errno is 0, and of the
 * functions that a program may have in its own version none was called.  Prints the environment, "NAME=value\n" each.
 * With arguments: changes the environment first as many programs do, and then executes the rest.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

#ifdef OWN_FUNCTIONS
static int calls;
void *malloc(size_t n) { (void)n; calls++; return NULL; }
void *calloc(size_t n, size_t m) { (void)n; (void)m; calls++; return NULL; }
void *realloc(void *p, size_t n) { (void)p; (void)n; calls++; return NULL; }
void free(void *p) { calls += p != NULL; }
int setenv(const char *n, const char *v, int o) { (void)n; (void)v; (void)o; calls++; return -1; }
int putenv(char *s) { (void)s; calls++; return -1; }
char *getenv(const char *n) { (void)n; calls++; return NULL; }
#else
enum { calls = 0 };
#endif

static void out(const char *text)
{
	if (write(1, text, strlen(text)) < 0)
		_exit(9);
}

int main(int argc, char **argv, char **envp)
{
	if (errno || calls) {
		out(errno ? "errno was changed\n" : "a function of the program was called\n");
		return 3;
	}
#ifndef OWN_FUNCTIONS
	if (argc > 2 && strcmp(argv[1], "grow") == 0) {
		char name[32];

		/* Many additions and removals, so that libc lays its array anew several times. */
		for (int i = 0; i < 300; i++) {
			snprintf(name, sizeof(name), "NEW_%d", i);
			setenv(name, "value", 1);
		}
		for (int i = 0; i < 300; i++) {
			snprintf(name, sizeof(name), "NEW_%d", i);
			unsetenv(name);
		}
		setenv("PATH", "/program/own", 1);
		putenv("LD_LIBRARY_PATH=/program/libraries");
		execv(argv[2], argv + 2);
		return 8;
	}
	if (argc > 2 && strcmp(argv[1], "clear") == 0) {
		char *kept[3] = {getenv("LD_PRELOAD"), getenv("GPULIMIT_PATH"), NULL};

		kept[0] -= strlen("LD_PRELOAD=");
		kept[1] -= strlen("GPULIMIT_PATH=");
		execve(argv[2], argv + 2, kept);
		return 8;
	}
	for (char **at = environ; *at; at++) {
		char name[256];
		size_t length = strcspn(*at, "=");

		if (!length || length >= sizeof(name) || !(*at)[length])
			continue;
		memcpy(name, *at, length);
		name[length] = 0;
		if (!getenv(name))
			return 4;
	}
#endif
	(void)argc, (void)argv;
	if (envp != environ) {
		/* Under musl main has the array as it was given: what was there is changed in it, what is new is not. */
		out("main has another array\n");
		for (char **at = envp; *at; at++)
			out("main:"), out(*at), out("\n");
	}
	for (char **at = environ; *at; at++)
		out(*at), out("\n");
	return 0;
}
