/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, by the driver's rules: the list is cut at the first entry
 * that names no device, an entry is an index or a UUID or a prefix of one that fits a single device, an
 * empty list hides everything, and a device named twice makes the whole list void.
 */
#define _GNU_SOURCE
#include <ctype.h>
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

static uint32_t order_devices(uint32_t *order)
{
	const char *rule = getenv("CUDA_DEVICE_ORDER");
	bool by_bus = rule && !strcmp(rule, "PCI_BUS_ID");
	uint32_t n = sim_machine->ngpus;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = i;
		for (; at && before(i, order[at - 1], by_bus); at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
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
		int at = !strncasecmp(entry, "GPU-", 4) ? by_uuid(entry, order, n) : by_index(entry, n);
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
