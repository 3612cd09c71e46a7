/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds functions of libc's dynamic-loading family (dlsym, dlvsym, dlopen, dladdr), and of its threads, in libc's own
 * symbol table.
 * We define dlsym ourselves, so asking the linker for it would find us; and the look-up hook runs so early under
 * sanitizers, and in so many libcs (musl has no dlvsym), that it may call no libc function at all.  So this file
 * walks the loader's list of objects by hand.  Built without sanitizers (see Makefile).
 */
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include "shim.h"

static bool same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static const struct link_map *first_object(void)
{
	const ElfW(Phdr) *headers = (const ElfW(Phdr) *)getauxval(AT_PHDR);
	unsigned long count = getauxval(AT_PHNUM);
	uintptr_t base = 0;
	const ElfW(Dyn) *dynamic = NULL;
	bool placed = false;
	for (unsigned long i = 0; headers && i < count; i++)
		if (headers[i].p_type == PT_PHDR) {
			base = (uintptr_t)headers - headers[i].p_vaddr;
			placed = true;
		}
	if (!placed) /* if musl's loader is run as a command, these are its own headers */
		return NULL;
	for (unsigned long i = 0; headers && i < count; i++)
		if (headers[i].p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)(base + headers[i].p_vaddr);
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++)
		if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr)
			return ((const struct r_debug *)dynamic->d_un.d_ptr)->r_map;
	return NULL;
}

struct table {
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *gnu_hash, *hash;
	const uint16_t *versions;
};

static struct table table_of(const struct link_map *object)
{
	struct table t = {0};
	for (const ElfW(Dyn) *d = object->l_ld; d && d->d_tag != DT_NULL; d++) {
		/* glibc stores relocated addresses here, musl the file's. */
		uintptr_t at = d->d_un.d_ptr < object->l_addr ? d->d_un.d_ptr + object->l_addr : d->d_un.d_ptr;
		switch (d->d_tag) {
		case DT_SYMTAB: t.symbols = (const void *)at; break;
		case DT_STRTAB: t.strings = (const void *)at; break;
		case DT_GNU_HASH: t.gnu_hash = (const void *)at; break;
		case DT_HASH: t.hash = (const void *)at; break;
		case DT_VERSYM: t.versions = (const void *)at; break;
		default: break;
		}
	}
	return t;
}

static uint32_t symbol_count(const struct table *t)
{
	if (t->hash)
		return t->hash[1];
	if (!t->gnu_hash)
		return 0;
	uint32_t buckets = t->gnu_hash[0], first = t->gnu_hash[1], words = t->gnu_hash[2], last = 0;
	const uint32_t *bucket = t->gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
	for (uint32_t i = 0; i < buckets; i++)
		if (bucket[i] > last)
			last = bucket[i];
	if (last < first)
		return 0;
	while (!(chain[last - first] & 1))
		last++;
	return last + 1;
}

/* The default version of a function if there is one, else any. */
static void *function_in(const struct link_map *object, const char *name)
{
	struct table t = table_of(object);
	void *any = NULL;
	if (!t.symbols || !t.strings)
		return NULL;
	for (uint32_t i = 0, n = symbol_count(&t); i < n; i++) {
		const ElfW(Sym) *s = &t.symbols[i];
		if (s->st_shndx == SHN_UNDEF || (s->st_info & 0xf) != STT_FUNC || !same(t.strings + s->st_name, name))
			continue;
		void *address = (void *)(object->l_addr + s->st_value);
		if (!t.versions || !(t.versions[i] & 0x8000))
			return address;
		any = address;
	}
	return any;
}

static bool is_libc(const char *path)
{
	const char *base = path ? path : "";
	for (const char *p = base; *p; p++)
		if (*p == '/')
			base = p + 1;
	return gl_begins(base, "libc.so") || gl_begins(base, "libc-2") || gl_begins(base, "libdl.so") ||
	       gl_begins(base, "libdl-2") || gl_begins(base, "libpthread.so") || gl_begins(base, "libpthread-2") ||
	       gl_begins(base, "ld-musl") || gl_begins(base, "libc.musl");
}

struct search {
	const char *name;
	void *found;
};

static int look_in(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *search = arg;
	(void)size;
	for (int i = 0; is_libc(info->dlpi_name) && i < info->dlpi_phnum; i++) {
		struct link_map object = {.l_addr = info->dlpi_addr};
		if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
			continue;
		object.l_ld = (ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
		search->found = function_in(&object, search->name);
	}
	return search->found != NULL;
}

void *gl_elf_libc_symbol(const char *name)
{
	for (const struct link_map *object = first_object(); object; object = object->l_next) {
		void *found = is_libc(object->l_name) ? function_in(object, name) : NULL;
		if (found)
			return found;
	}
	if (first_object())
		return NULL;
	/* If the list cannot be found by hand, libc is asked for it.  Not on glibc, where libc may not be ready yet. */
	struct search search = {name, NULL};
	(void)dl_iterate_phdr(look_in, &search);
	return search.found;
}

/* If the loader's list ends without libc, RTLD_NEXT finds libc's function, because libc was loaded first. */
bool gl_elf_next_is_foreign(const void *base, const char *name, const void *ours)
{
	const struct link_map *object = first_object();
	while (object && (const void *)object->l_addr != base)
		object = object->l_next;
	while (object && (object = object->l_next)) {
		void *found = function_in(object, name);
		if (found)
			return found != ours && !is_libc(object->l_name);
	}
	return false;
}
