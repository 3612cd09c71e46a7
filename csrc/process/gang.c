/* SPDX-License-Identifier: Apache-2.0
 *
 * A gang is recognised by opened memory of a sibling process, and by functions of libraries for collectives.  Peer
 * access alone is no sign, since programs also use it for plain copies.
 */
#include "process/gang.h"

#include <string.h>

enum gl_gang_mode gl_gang_mode(void)
{
	const struct gl_policy *policy = gl_load_relaxed(&gl_self.daemon.policy);
	uint32_t mode = policy ? gl_load_relaxed(&policy->gang) : gl_self.quota.gang_mode;
	return mode == GL_GANG_OFF || mode == GL_GANG_NAMED ? (enum gl_gang_mode)mode : GL_GANG_AUTO;
}

static uint32_t devices(void)
{
	return gl_load_relaxed(&gl_self.usage->gang.devices);
}

void gl_gang_note(uint32_t entry)
{
	if (entry < GL_MAX_DEVICES && !(devices() >> entry & 1) && gl_gang_mode() != GL_GANG_OFF)
		(void)__atomic_fetch_or(&gl_self.usage->gang.devices, 1u << entry, __ATOMIC_RELAXED);
}

bool gl_gang_has(const struct gl_gpu *gpu)
{
	bool noted = devices() >> gpu->index & 1;
	enum gl_gang_mode mode = gl_gang_mode();
	if (mode == GL_GANG_NAMED && !noted)
		gl_gang_note(gpu->index);
	return mode == GL_GANG_NAMED || (mode == GL_GANG_AUTO && noted);
}

void gl_gang_note_function(const struct gl_gpu *gpu, const char *name)
{
	static const char *const prefixes[] = {"ncclDevKernel", "ncclKernel", "ncclSymk", "nvshmem"};
	for (size_t i = 0; gpu && name && i < sizeof prefixes / sizeof *prefixes; i++)
		if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
			gl_gang_note(gpu->index);
}
