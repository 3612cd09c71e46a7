/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: whatever environment a program is started with, libgpupath.so leaves a whole one, and doing it again
 * changes nothing.  Input: strings ended by NUL; the first byte of each chooses a name to put before the rest, or none.
 */
#include <stdlib.h>
#include <sys/mman.h>

/* From the heap, where the sanitizer sees one byte too many. */
static void *mapped[4];
static int maps;

static void *heap_map(size_t bytes)
{
	if (maps == 4)
		abort();
	return mapped[maps++] = malloc(bytes);
}

#define mmap(at, bytes, ...) heap_map(bytes)
#define munmap(at, bytes) ((void)(at), (void)(bytes))
#include "path/path.c"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_ENTRIES = 40, MAX_ENTRY_BYTES = 600 };

static const char *const names[] = {
	"PATH=", "LD_PRELOAD=", "LD_LIBRARY_PATH=", "GPULIMIT_PATH=", "GPULIMIT_PREPEND_PATH=", "TF_PATH=", "TF_PREPEND_PATH=",
	"GPULIMIT_LD_PRELOAD=", "GPULIMIT_PREPEND_LD_PRELOAD=", "TF_LD_PRELOAD=", "GPULIMIT_LD_LIBRARY_PATH=",
	"TF_PREPEND_LD_LIBRARY_PATH=", "PATHS=", "PAT", "", "=",
};
enum { NAMES = sizeof(names) / sizeof(*names) };

static void must(int truth)
{
	if (!truth)
		abort();
}

static size_t count(char **array)
{
	size_t n = 0;

	while (array[n])
		n++;
	return n;
}

static bool same(char **a, char **b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(a[i], b[i]) != 0)
			return false;
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char **saved = environ, *array[MAX_ENTRIES + 1], *once[MAX_ENTRIES + TARGETS + 1];
	size_t given = 0, after;

	for (size_t at = 0; at < size && given < MAX_ENTRIES; given++) {
		size_t length = strnlen((const char *)data + at, size - at);
		const char *name = names[data[at] % NAMES];

		length = length > MAX_ENTRY_BYTES ? MAX_ENTRY_BYTES : length;
		array[given] = malloc(strlen(name) + length + 1);
		strcpy(array[given], name);
		if (length)
			strncat(array[given], (const char *)data + at + 1, length - 1);
		at += length + 1;
	}
	array[given] = NULL;
	char *owned[MAX_ENTRIES];
	memcpy(owned, array, given * sizeof(*array));

	environ = array;
	add_paths();
	after = count(environ);
	must(after >= given && after <= given + TARGETS);
	memcpy(once, environ, (after + 1) * sizeof(*once));
	add_paths();
	must(count(environ) == after && same(environ, once, after));

	environ = saved;
	while (maps)
		free(mapped[--maps]);
	for (size_t i = 0; i < given; i++)
		free(owned[i]);
	return 0;
}
