/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, by the driver's rules: the list is cut at the first entry
 * that names no device, an entry is an index or a UUID or a prefix of one that fits a single device, an
 * empty list hides everything, and a device named twice makes the whole list void.
 *
 * A card in MIG mode is no device; its MIG devices are, but a program gets one at most: where it has other
 * cards, none, unless the list names it.  It is named by its UUID, by "MIG-GPU-<card>/<gpu instance>/<compute
 * instance>", or by its card's UUID, which stands for the card's first.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "sim.h"

int sim_device_count;
uint32_t sim_device_gpu[SIM_MAX_GPUS];

static bool before(uint32_t a, uint32_t b, bool by_bus)
{
	const struct sim_model *x = sim_model_of(a), *y = sim_model_of(b);

	if (!by_bus && x->speed != y->speed)
		return x->speed > y->speed;
	return x->pci_bus < y->pci_bus;
}

/* Cards that are devices, or else the first MIG device that there is. */
static uint32_t order_devices(uint32_t *order)
{
	const char *rule = getenv("CUDA_DEVICE_ORDER");
	bool by_bus = rule && !strcmp(rule, "PCI_BUS_ID");
	uint32_t n = 0;

	for (uint32_t i = 0; i < sim_machine->ncards; i++) {
		if (sim_machine->gpus[i].mig_enabled)
			continue;
		uint32_t at = n++;
		for (; at && before(i, order[at - 1], by_bus); at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
	for (uint32_t i = sim_machine->ncards; !n && i < sim_machine->ngpus; i++)
		if (!sim_machine->gpus[i].gone)
			order[n++] = i;
	return n;
}

static int by_index(const char *entry, uint32_t n)
{
	char *end;
	long index = strtol(entry, &end, 10);

	return end == entry || *end || index < 0 || index >= (long)n ? -1 : (int)index;
}

static int by_uuid(const char *entry, const uint32_t *order, uint32_t n)
{
	int found = -1;

	for (uint32_t i = 0; i < n; i++) {
		if (strncasecmp(entry, sim_model_of(order[i])->uuid, strlen(entry)))
			continue;
		if (found >= 0)
			return -1; /* ambiguous */
		found = (int)i;
	}
	return found;
}

static uint32_t mig_device(uint32_t card, int gpu_instance, int compute_instance)
{
	for (uint32_t i = sim_machine->ncards; i < sim_machine->ngpus; i++) {
		const struct sim_gpu *g = &sim_machine->gpus[i];
		if (g->parent != card || g->gone)
			continue;
		if (gpu_instance < 0 || (g->gpu_instance == (uint32_t)gpu_instance && g->compute_instance == (uint32_t)compute_instance))
			return i;
	}
	return SIM_NO_GPU;
}

/* The MIG device that an entry names. */
static uint32_t by_mig(const char *entry)
{
	uint32_t found = SIM_NO_GPU;
	int gi = -1, ci = -1;
	const char *slash = strchr(entry, '/');
	size_t length = slash ? (size_t)(slash - entry) : strlen(entry);

	if (slash && sscanf(slash, "/%d/%d", &gi, &ci) != 2)
		return SIM_NO_GPU;
	if (!strncasecmp(entry, "MIG-GPU-", 8)) {
		entry += 4;
		length -= 4;
	}
	for (uint32_t i = 0; i < sim_machine->ngpus; i++) {
		const struct sim_gpu *g = &sim_machine->gpus[i];
		uint32_t device = i;
		if (g->gone || strncasecmp(entry, g->model.uuid, length))
			continue;
		if (g->parent == SIM_NO_GPU)
			device = g->mig_enabled ? mig_device(i, gi, ci) : SIM_NO_GPU;
		if (device == SIM_NO_GPU)
			continue;
		if (found != SIM_NO_GPU)
			return SIM_NO_GPU; /* ambiguous */
		found = device;
	}
	return found;
}

static char *trimmed(char *s)
{
	while (isspace((unsigned char)*s))
		s++;
	for (size_t n = strlen(s); n && isspace((unsigned char)s[n - 1]);)
		s[--n] = 0;
	return s;
}

static void choose(char *list, const uint32_t *order, uint32_t n)
{
	while (list && sim_device_count < (int)n + 1) {
		char *comma = strchr(list, ',');
		if (comma)
			*comma++ = 0;
		char *entry = trimmed(list);
		bool is_card = !strncasecmp(entry, "GPU-", 4), is_mig = !strncasecmp(entry, "MIG-", 4);
		int at = is_card ? by_uuid(entry, order, n) : is_mig ? -1 : by_index(entry, n);
		if (at < 0 && (is_card || is_mig) && !sim_device_count) {
			uint32_t device = by_mig(entry);
			if (device != SIM_NO_GPU)
				sim_device_gpu[sim_device_count++] = device;
		}
		if (at < 0)
			return;
		for (int i = 0; i < sim_device_count; i++) {
			if (sim_device_gpu[i] == order[at]) {
				sim_device_count = 0;
				return;
			}
		}
		sim_device_gpu[sim_device_count++] = order[at];
		list = comma;
	}
}

void sim_visible_devices(void)
{
	uint32_t order[SIM_MAX_GPUS];
	uint32_t n = order_devices(order);
	const char *list = getenv("CUDA_VISIBLE_DEVICES");

	sim_device_count = 0;
	if (list) {
		char *copy = strdup(list);
		if (copy)
			choose(copy, order, n);
		free(copy);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		sim_device_gpu[sim_device_count++] = order[i];
}

int sim_device_of_gpu(uint32_t gpu)
{
	for (int i = 0; i < sim_device_count; i++)
		if (sim_device_gpu[i] == gpu)
			return i;
	return -1;
}
