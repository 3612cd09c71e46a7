/* SPDX-License-Identifier: Apache-2.0
 *
 * Cards in parts: MIG devices, which are GPUs of the machine, and vGPUs, which are only told of.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

/* A UUID that is the same for the same seed and place, and differs in its first digits. */
void sim_make_uuid(char *out, size_t size, const char *prefix, const char *seed, uint32_t index)
{
	uint64_t h = 1469598103934665603ull, word[2];

	for (const char *c = seed; *c; c++)
		h = (h ^ (unsigned char)*c) * 1099511628211ull;
	for (int i = 0; i < 2; i++) {
		h += 0x9e3779b97f4a7c15ull * (index + 1);
		word[i] = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
		word[i] ^= word[i] >> 27;
	}
	snprintf(out, size, "%s%08x-%04x-%04x-%04x-%012llx", prefix, (unsigned)(word[0] >> 32), (unsigned)(word[0] >> 16) & 0xffff,
		(unsigned)word[0] & 0xffff, (unsigned)(word[1] >> 48), (unsigned long long)word[1] & 0xffffffffffffull);
}

/* "2g.20gb": slices and gigabytes. */
static bool read_profile(const char *text, unsigned *slices, unsigned *gigabytes)
{
	char rest[8] = "";

	return sscanf(text, "%ug.%u%7s", slices, gigabytes, rest) == 3 && !strcmp(rest, "gb") && *slices >= 1 && *slices <= 7 && *gigabytes;
}

static struct sim_gpu *device_at(struct sim_machine *m, uint32_t card, uint32_t index, const char *profile)
{
	for (uint32_t i = m->ncards; i < m->ngpus; i++) {
		struct sim_gpu *g = &m->gpus[i];
		if (g->parent == card && g->mig_index == index && !strcmp(g->profile, profile))
			return g;
	}
	return NULL;
}

/* The memory of a MIG device is the card's, times the gigabytes in its name over those of the card. */
static void make_device(struct sim_machine *m, struct sim_gpu *g, uint32_t card, uint32_t index, const char *profile)
{
	const struct sim_model copy = m->gpus[card].model, *whole = &copy;
	unsigned slices = 1, gigabytes = 1;
	uint64_t all = (whole->total_bytes + (1ull << 30) - 1) >> 30;
	char seed[128];

	(void)read_profile(profile, &slices, &gigabytes);
	memset(g, 0, sizeof(*g));
	g->model = *whole;
	g->parent = card;
	g->mig_index = index;
	g->gpu_instance = 7 + index;
	g->serving = SIM_NO_QUEUE;
	snprintf(g->profile, sizeof(g->profile), "%s", profile);
	snprintf(seed, sizeof(seed), "%.47s %.31s", whole->uuid, profile);
	sim_make_uuid(g->model.uuid, sizeof(g->model.uuid), "MIG-", seed, index);
	snprintf(g->model.name, sizeof(g->model.name), "%.70s MIG %.16s", whole->name, profile);
	g->model.total_bytes = whole->total_bytes / 256 * gigabytes / (all ? all : 1) * 256;
	g->model.reserved_bytes = whole->reserved_bytes * gigabytes / (all ? all : 1);
	g->model.sm_count = whole->sm_count * slices / 7;
	if (!g->model.sm_count)
		g->model.sm_count = 1;
	g->model.mig[0] = g->model.vgpu[0] = 0;
}

/* Partitions a card again: devices that the old and the new layout share stay, with the work on them. */
bool sim_mig_layout(struct sim_machine *m, uint32_t card, const char *layout)
{
	char copy[sizeof(m->gpus[0].model.mig)], *save = NULL;
	unsigned slices, gigabytes;
	uint32_t index = 0;

	if (strlen(layout) >= sizeof(copy))
		return false;
	for (uint32_t i = m->ncards; i < m->ngpus; i++)
		if (m->gpus[i].parent == card)
			m->gpus[i].gone = 1;
	m->gpus[card].mig_enabled = strcmp(layout, "") && strcmp(layout, "off");
	if (!m->gpus[card].mig_enabled || !strcmp(layout, "on"))
		return true;
	strcpy(copy, layout);
	for (char *part = strtok_r(copy, ", ", &save); part; part = strtok_r(NULL, ", ", &save), index++) {
		if (!strcmp(part, "-"))
			continue;
		if (!read_profile(part, &slices, &gigabytes) || index >= 7 || strlen(part) >= sizeof(m->gpus[0].profile))
			return false;
		struct sim_gpu *g = device_at(m, card, index, part);
		if (g) {
			g->gone = 0;
			continue;
		}
		if (m->ngpus == SIM_MAX_GPUS)
			return false;
		make_device(m, &m->gpus[m->ngpus], card, index, part);
		m->ngpus++;
	}
	return true;
}

bool sim_vgpu_add(struct sim_machine *m, uint32_t card)
{
	const struct sim_gpu *g = &m->gpus[card];
	char seed[96];

	for (uint32_t i = 0; i < SIM_MAX_VGPUS; i++) {
		struct sim_vgpu *v = &m->vgpus[i];
		if (v->id)
			continue;
		uint32_t n = ++m->next_vgpu;
		*v = (struct sim_vgpu){
			.id = 0xc1d00000u + n, .card = card, .sm = (uint32_t)g->model.vgpu_sm, .memory = (uint32_t)g->model.vgpu_sm / 2,
			.encoder = 5, .decoder = 3, .license = 5, .processes = 2,
			.used_bytes = g->model.vgpu_memory_bytes / 4 * 3,
		};
		snprintf(seed, sizeof(seed), "vgpu %s", g->model.uuid);
		sim_make_uuid(v->uuid, sizeof(v->uuid), "", seed, n);
		snprintf(seed, sizeof(seed), "vm %s", g->model.uuid);
		sim_make_uuid(v->vm_id, sizeof(v->vm_id), "", seed, n);
		snprintf(v->driver, sizeof(v->driver), "570.124.06");
		return true;
	}
	return false;
}
