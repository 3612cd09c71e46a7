/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks/nvml_own_processes.h"

#include <string.h>

#define NO_INSTANCE 0xffffffffu

/* A slot in use whose process the caller can see from its pid namespace. */
static bool read_slot(uint32_t i, uint32_t *pid, uint32_t *host_pid)
{
	struct gl_slot *slot = &gl_self.usage->slot[i];
	uint64_t generation = gl_load_acquire(&slot->generation);

	if (!(generation & 1))
		return false;
	*pid = gl_segment_pid(i);
	*host_pid = gl_load_relaxed(&slot->host_pid);
	return *pid && gl_load_acquire(&slot->generation) == generation;
}

static uint32_t slots_used(void)
{
	uint32_t used = gl_load_acquire(&gl_self.usage->header.slots_used);

	return used < GL_MAX_SLOTS ? used : GL_MAX_SLOTS;
}

struct row {
	uint32_t pid;
	uint64_t bytes;
};

/* The next process from slot *at on that has a context or memory on the card. */
static bool next_row(const struct gl_card *card, uint32_t *at, struct row *row)
{
	uint32_t host_pid;

	if (!card->device)
		return false;
	for (; *at < slots_used(); ++*at) {
		struct gl_account *account = &gl_self.usage->slot[*at].account[card->entry];
		uint64_t bytes = gl_ledger_account(gl_self.usage, card->entry, *at), lent = gl_lent_bytes(card->entry, *at);
		row->bytes = bytes > lent ? bytes - lent : 0;
		if ((row->bytes || gl_load_relaxed(&account->contexts)) && read_slot(*at, &row->pid, &host_pid)) {
			++*at;
			return true;
		}
	}
	return false;
}

static unsigned int count_rows(const struct gl_card *card)
{
	unsigned int count = 0;
	struct row row;

	gl_segment_reap();
	for (uint32_t at = 0; next_row(card, &at, &row);)
		count++;
	return count;
}

uint32_t gl_own_pid(uint32_t nvml_pid)
{
	uint32_t pid, host_pid, found = 0, listed = gl_load_relaxed(&gl_self.listed_pid);

	if (listed && listed == nvml_pid)
		return gl_self.pid;
	for (uint32_t i = 0; i < slots_used(); i++) {
		if (!read_slot(i, &pid, &host_pid))
			continue;
		if (pid == nvml_pid)
			return pid;
		if (host_pid == nvml_pid && listed != gl_self.pid)
			found = pid;
	}
	return found;
}

static const size_t row_bytes[] = {sizeof(nvmlProcessInfo_v1_t), sizeof(nvmlProcessInfo_v2_t),
				   sizeof(nvmlProcessDetail_v1_t)};

struct instance {
	unsigned int gpu, compute;
};

static struct instance instance_of(nvmlDevice_t device, const struct gl_card *card)
{
	struct instance in = {NO_INSTANCE, NO_INSTANCE};

	if (!card->mig)
		return in;
	if (REAL(nvmlDeviceGetGpuInstanceId)(device, &in.gpu) != NVML_SUCCESS)
		in.gpu = NO_INSTANCE;
	if (REAL(nvmlDeviceGetComputeInstanceId)(device, &in.compute) != NVML_SUCCESS)
		in.compute = NO_INSTANCE;
	return in;
}

static void write_row(void *rows, unsigned int i, enum gl_process_layout layout, const struct row *row, struct instance in)
{
	void *at = (char *)rows + i * row_bytes[layout];

	if (layout == GL_PROCESS_V1)
		*(nvmlProcessInfo_v1_t *)at = (nvmlProcessInfo_v1_t){row->pid, row->bytes};
	else if (layout == GL_PROCESS_V2)
		*(nvmlProcessInfo_v2_t *)at = (nvmlProcessInfo_v2_t){row->pid, row->bytes, in.gpu, in.compute};
	else
		*(nvmlProcessDetail_v1_t *)at = (nvmlProcessDetail_v1_t){row->pid, row->bytes, in.gpu, in.compute, 0};
}

nvmlReturn_t gl_own_processes(nvmlDevice_t device, unsigned int *count, void *rows, enum gl_process_layout layout)
{
	struct gl_card card = gl_card_of(device);
	struct instance in = instance_of(device, &card);
	unsigned int room = *count, needed = count_rows(&card), done = 0;
	struct row row;

	if (needed > room) {
		*count = needed;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	for (uint32_t at = 0; done < room && next_row(&card, &at, &row);)
		write_row(rows, done++, layout, &row, in);
	*count = done;
	return NVML_SUCCESS;
}
