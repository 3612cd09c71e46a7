/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's process lists: a tenant sees its own processes, by the pids that they have in the caller's namespace, and
 * no other.  The compute lists are written from the tenant's slots, because NVML in a container names processes by
 * pids of the host; the real call only says whether there is such a list.  Lists that the slots know nothing of are
 * the real ones, with everybody else's rows taken out.
 */
#include <string.h>

#include "hooks/hook_nvml.h"

#define NO_INSTANCE 0xffffffffu

/* ---- the tenant's processes ---- */

/* A slot in use whose process the caller can name: same pid namespace. */
static bool read_slot(uint32_t i, uint32_t *pid, uint32_t *host_pid)
{
	struct gl_slot *slot = &gl_self.usage->slot[i];
	uint64_t generation = gl_load(&slot->generation);

	if (!(generation & 1) || gl_peek(&slot->pid_namespace) != gl_self.own->pid_namespace)
		return false;
	*pid = gl_peek(&slot->pid);
	*host_pid = gl_peek(&slot->host_pid);
	return gl_load(&slot->generation) == generation;
}

static uint32_t slots_used(void)
{
	uint32_t used = gl_load(&gl_self.usage->header.slots_used);

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
		row->bytes = gl_ledger_account(gl_self.usage, card->entry, *at);
		if ((row->bytes || gl_peek(&account->contexts)) && read_slot(*at, &row->pid, &host_pid)) {
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

/* The pid to show for a row that NVML gave, or 0 for another tenant's.  NVML names processes by the host's pids;
 * where the slot does not know its own, it is the same number, or nvml_usage.c has found out. */
static uint32_t own_pid_of(uint32_t nvml_pid)
{
	uint32_t pid, host_pid, listed = gl_peek(&gl_self.listed_pid);

	if (listed && listed == nvml_pid)
		return gl_self.pid;
	for (uint32_t i = 0; i < slots_used(); i++)
		if (read_slot(i, &pid, &host_pid) && (host_pid ? host_pid : pid) == nvml_pid)
			return pid;
	return 0;
}

/* ---- compute lists ---- */

enum layout { LAYOUT_V1, LAYOUT_V2, LAYOUT_DETAIL };
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

static void write_row(void *rows, unsigned int i, enum layout layout, const struct row *row, struct instance in)
{
	void *at = (char *)rows + i * row_bytes[layout];

	if (layout == LAYOUT_V1)
		*(nvmlProcessInfo_v1_t *)at = (nvmlProcessInfo_v1_t){row->pid, row->bytes};
	else if (layout == LAYOUT_V2)
		*(nvmlProcessInfo_v2_t *)at = (nvmlProcessInfo_v2_t){row->pid, row->bytes, in.gpu, in.compute};
	else
		*(nvmlProcessDetail_v1_t *)at = (nvmlProcessDetail_v1_t){row->pid, row->bytes, in.gpu, in.compute, 0};
}

/* NVML's protocol: *count is the room, then the number; too little room gives the number needed and no rows. */
static nvmlReturn_t list_own(nvmlDevice_t device, unsigned int *count, void *rows, enum layout layout)
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

/* The real call has answered a question for the number of rows: is there such a list? */
static bool has_list(nvmlReturn_t result)
{
	return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
}

#define COMPUTE_LIST(name, type, layout)                                                                     \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)                             \
	{                                                                                                    \
		unsigned int none = 0;                                                                       \
		if (gl_begin_nvml() != GL_ATTACHED || !count || (*count && !infos))                          \
			return REAL(name)(device, count, infos);                                             \
		nvmlReturn_t result = REAL(name)(device, &none, NULL);                                       \
		return has_list(result) ? list_own(device, count, infos, layout) : result;                   \
	}

COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, LAYOUT_V1)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, LAYOUT_V2)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, LAYOUT_V2)

/* ---- real lists with the rows of others taken out ---- */

/* Moves the rows that are the tenant's to the front, with the pids to show, and blanks the rest.  pid_at: offset of
 * the pid in a row. */
static unsigned int keep_own(void *rows, unsigned int count, size_t size, size_t pid_at)
{
	unsigned int kept = 0;

	gl_segment_reap();
	for (unsigned int i = 0; i < count; i++) {
		char *row = (char *)rows + i * size;
		uint32_t pid;
		memcpy(&pid, row + pid_at, sizeof(pid));
		pid = own_pid_of(pid);
		if (!pid)
			continue;
		memmove((char *)rows + kept * size, row, size);
		memcpy((char *)rows + kept++ * size + pid_at, &pid, sizeof(pid));
	}
	memset((char *)rows + kept * size, 0, (count - kept) * size);
	return kept;
}

/* With too little room the caller learns how many rows the card has, not whose.  No rows are then written. */
#define FILTERED_LIST(name, type)                                                                            \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)                             \
	{                                                                                                    \
		nvmlReturn_t result;                                                                         \
		int state = gl_begin_nvml();                                                                 \
		result = REAL(name)(device, count, infos);                                                   \
		if (state == GL_ATTACHED && result == NVML_SUCCESS && count && infos)                        \
			*count = keep_own(infos, *count, sizeof(*infos), offsetof(type, pid));               \
		return result;                                                                               \
	}

FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

#define DETAIL_V1 ((unsigned int)(sizeof(nvmlProcessDetailList_t) | (1u << 24)))
#define UTILIZATION_V1 ((unsigned int)(sizeof(nvmlProcessesUtilizationInfo_t) | (1u << 24)))

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
	if (gl_begin_nvml() != GL_ATTACHED || !list || list->version != DETAIL_V1 ||
	    (list->numProcArrayEntries && !list->procArray))
		return REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
	if (list->mode == NVML_PROCESS_MODE_COMPUTE) {
		nvmlProcessDetailList_t none = {list->version, list->mode, 0, NULL};
		nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, &none);
		if (!has_list(result))
			return result;
		return list_own(device, &list->numProcArrayEntries, list->procArray, LAYOUT_DETAIL);
	}
	nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
	if (result == NVML_SUCCESS && list->procArray)
		list->numProcArrayEntries = keep_own(list->procArray, list->numProcArrayEntries,
						     sizeof(*list->procArray), offsetof(nvmlProcessDetail_v1_t, pid));
	return result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
					     unsigned int *count, unsigned long long since)
{
	int state = gl_begin_nvml();
	nvmlReturn_t result = REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since);

	if (state != GL_ATTACHED || result != NVML_SUCCESS || !samples || !count)
		return result;
	*count = keep_own(samples, *count, sizeof(*samples), offsetof(nvmlProcessUtilizationSample_t, pid));
	return *count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
	int state = gl_begin_nvml();
	nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);

	if (state != GL_ATTACHED || result != NVML_SUCCESS || !info->procUtilArray || info->version != UTILIZATION_V1)
		return result;
	info->processSamplesCount = keep_own(info->procUtilArray, info->processSamplesCount, sizeof(*info->procUtilArray),
					     offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
	return info->processSamplesCount ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* nvidia-smi gets its process table through NVML's private export table, past these hooks, and shows every process of
 * its pid namespace (measured, driver 580.159): within a namespace tenants see each other there.  Some of its queries
 * take the names from here. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	if (gl_begin_nvml() == GL_ATTACHED && name && length) {
		gl_segment_reap();
		if (!own_pid_of(pid) && pid != gl_self.pid)
			return NVML_ERROR_NOT_FOUND;
	}
	return REAL(nvmlSystemGetProcessName)(pid, name, length);
}
