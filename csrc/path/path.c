/* SPDX-License-Identifier: Apache-2.0
 *
 * libgpupath.so.  Preloaded, it adds to PATH, LD_PRELOAD and LD_LIBRARY_PATH as a program starts, before the
 * program's own first line: for images that set these themselves, so that setting them from outside would hide
 * what the image has.
 *
 *   GPULIMIT_PATH=DIR[:DIR…]          at the end of PATH, what is there already left where it is
 *   GPULIMIT_PREPEND_PATH=DIR[:DIR…]  at the front, moved there if it was elsewhere
 *
 * and the same for LD_PRELOAD and LD_LIBRARY_PATH; TF_PATH, TF_PREPEND_PATH and so on are taken too, after ours.
 * The loader has read LD_PRELOAD and LD_LIBRARY_PATH by then, so those two are for the programs that this one
 * starts.  The variables stay, so that a child whose parent set a PATH of its own gets the additions again.
 *
 * Runs once, in the loader's only thread.  All new text lies in one mapping that lives as long as the process:
 * nothing is taken from the program's heap, and whatever goes wrong leaves the environment as it was.
 */
#include "list.h"

#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

extern char **environ;

/* A longer string, name and NUL included, makes every later exec fail (E2BIG): MAX_ARG_STRLEN with 4 KiB pages. */
#define MAX_STRING_BYTES (32 * 4096)
#define TARGETS 3

struct target {
	const char *name;
	const char *separators;  /* as the loader, or execvp, takes them */
	const char *sources[4];  /* front, front, back, back */
};

static const struct target targets[TARGETS] = {
	{"PATH", ":", {"GPULIMIT_PREPEND_PATH", "TF_PREPEND_PATH", "GPULIMIT_PATH", "TF_PATH"}},
	{"LD_PRELOAD", ": ",
	 {"GPULIMIT_PREPEND_LD_PRELOAD", "TF_PREPEND_LD_PRELOAD", "GPULIMIT_LD_PRELOAD", "TF_LD_PRELOAD"}},
	{"LD_LIBRARY_PATH", ":;",
	 {"GPULIMIT_PREPEND_LD_LIBRARY_PATH", "TF_PREPEND_LD_LIBRARY_PATH", "GPULIMIT_LD_LIBRARY_PATH",
	  "TF_LD_LIBRARY_PATH"}},
};

/* The page for new text, and for a new array if the environment grows. */
struct page {
	char *text;
	char **array;
	size_t bytes;
};

/* The value in "NAME=value", or NULL if the string is of another name. */
static const char *value_of(const char *string, const char *name)
{
	size_t length = strlen(name);

	return strncmp(string, name, length) == 0 && string[length] == '=' ? string + length + 1 : NULL;
}

/* getenv, of which a program may have one of its own. */
static const char *look_up(char **array, const char *name)
{
	for (; *array; array++) {
		const char *value = value_of(*array, name);

		if (value)
			return value;
	}
	return NULL;
}

static struct gp_edit edit_of(const struct target *target, char **array)
{
	return (struct gp_edit){
		.separators = target->separators,
		.front = {look_up(array, target->sources[0]), look_up(array, target->sources[1])},
		.back = {look_up(array, target->sources[2]), look_up(array, target->sources[3])},
	};
}

/* The usual case: no variable requests anything. */
static bool is_idle(const struct gp_edit *edit)
{
	return !edit->front[0] && !edit->front[1] && !edit->back[0] && !edit->back[1];
}

/* Bytes that one target may need: for each string of its name (there can be several), or for a new one. */
static size_t room_of(const struct target *target, const struct gp_edit *edit, char **array)
{
	size_t name = strlen(target->name) + 1, room = name + gp_list_room(edit, NULL);

	if (is_idle(edit))
		return 0;
	for (; *array; array++) {
		const char *value = value_of(*array, target->name);

		room += value ? name + gp_list_room(edit, value) : 0;
	}
	return room;
}

/* Writes "NAME=merged" into the page.  NULL: no change, or too long to be handed on. */
static char *merged(const struct target *target, const struct gp_edit *edit, const char *value, struct page *page)
{
	size_t name = strlen(target->name), length;
	char *string = page->text;

	memcpy(string, target->name, name);
	string[name] = '=';
	if (!gp_list_merge(edit, value, string + name + 1))
		return NULL;
	length = strlen(string) + 1;
	if (length > MAX_STRING_BYTES)
		return NULL;
	page->text += length;
	return string;
}

/* Adds a string to the environment, whose array the program's stack holds: in a copy of it. */
static void add(char *string, struct page *page)
{
	size_t count = 0;

	while (environ[count])
		count++;
	if (environ != page->array)
		memcpy(page->array, environ, count * sizeof(*environ));
	page->array[count] = string;
	page->array[count + 1] = NULL;
	environ = page->array;
}

/* Changes the strings of one target, in the array that is there: main's third argument is the same. */
static void apply(const struct target *target, const struct gp_edit *edit, struct page *page)
{
	bool found = false;

	if (is_idle(edit))
		return;
	for (char **at = environ; *at; at++) {
		const char *value = value_of(*at, target->name);
		char *string = value ? merged(target, edit, value, page) : NULL;

		found |= value != NULL;
		if (string)
			*at = string;
	}
	if (!found) {
		char *string = merged(target, edit, NULL, page);

		if (string)
			add(string, page);
	}
}

static bool reserve(struct page *page, const struct gp_edit edits[TARGETS])
{
	size_t slots = TARGETS + 1, text = 0;
	void *map;

	for (char **at = environ; *at; at++)
		slots++;
	for (int i = 0; i < TARGETS; i++)
		text += room_of(&targets[i], &edits[i], environ);
	if (!text)
		return false;
	page->bytes = slots * sizeof(*environ) + text;
	map = mmap(NULL, page->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return false;
	page->array = map;
	page->text = (char *)map + slots * sizeof(*environ);
	return true;
}

static void add_paths(void)
{
	struct gp_edit edits[TARGETS];
	struct page page = {0};

	for (int i = 0; i < TARGETS; i++)
		edits[i] = edit_of(&targets[i], environ);
	if (reserve(&page, edits)) {
		char *begin = page.text;

		for (int i = 0; i < TARGETS; i++)
			apply(&targets[i], &edits[i], &page);
		if (page.text == begin)
			munmap(page.array, page.bytes); /* all entries were present already */
	}
}

__attribute__((constructor)) static void on_load(void)
{
	int saved = errno;

	/* A program with more rights than its caller must not follow the caller's variables. */
	if (environ && !getauxval(AT_SECURE))
		add_paths();
	errno = saved;
}
