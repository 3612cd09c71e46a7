/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's process lists: a tenant sees only its own processes, by their pids in the caller's namespace.  Compute lists are
 * built from the tenant's slots (nvml_own_processes.c), because NVML names processes by pids of the caller's namespace or of
 * the host, depending on its version.  The real call only tells if such a list exists.  For lists that the slots cannot
 * provide, the real list is fetched into a private buffer and the rows of other tenants are removed.  So no row and no row
 * count of another tenant reaches the caller.
 */
#include <string.h>

#include "hooks/nvml_own_processes.h"

/* ---- compute lists ---- */

/* The real call has answered a query for the number of rows.  True if it has such a list. */
static bool has_list(nvmlReturn_t result)
{
	return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
}

/* Room without an address: the driver's answer, or an error if the driver accepts that. */
static nvmlReturn_t no_rows(nvmlReturn_t result)
{
	return has_list(result) ? NVML_ERROR_INVALID_ARGUMENT : result;
}

#define COMPUTE_LIST(name, type, layout)                                                                     \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)                             \
	{                                                                                                    \
		unsigned int none = 0, asked = count ? *count : 0;                                           \
		if (gl_begin_nvml() != GL_ATTACHED || !count)                                                \
			return REAL(name)(device, count, infos);                                             \
		if (asked && !infos)                                                                         \
			return no_rows(REAL(name)(device, &asked, infos));                                   \
		nvmlReturn_t result = REAL(name)(device, &none, NULL);                                       \
		return has_list(result) ? gl_own_processes(device, count, infos, layout) : result;           \
	}

COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, GL_PROCESS_V1)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, GL_PROCESS_V2)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, GL_PROCESS_V2)

/* ---- real lists without the rows of other tenants ---- */

/* The real call: *count is the room, then the number. */
struct question {
	nvmlReturn_t (*ask)(const struct question *question, unsigned int *count, void *rows);
	nvmlDevice_t device;
	void *call;               /* the real function, where one `ask` serves several */
	unsigned long long since; /* and its further arguments */
	unsigned int version, mode;
	size_t size, pid_at; /* of a row */
};

enum { FIRST_ROWS = 128, SPARE_ROWS = 64, MAX_ROWS = 1 << 16, MAX_ROW_BYTES = 64 };

struct rows {
	void *at;
	size_t mapped;
	unsigned int count;
	char first[FIRST_ROWS * MAX_ROW_BYTES];
};

static void rows_free(struct rows *rows)
{
	if (rows->mapped)
		munmap(rows->at, rows->mapped);
}

static bool rows_room(struct rows *rows, unsigned int count, size_t size)
{
	rows->at = rows->first;
	rows->mapped = 0;
	rows->count = FIRST_ROWS;
	if (count <= FIRST_ROWS)
		return true;
	rows->count = count;
	rows->mapped = count * size;
	rows->at = mmap(NULL, rows->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (rows->at != MAP_FAILED)
		return true;
	rows->mapped = 0;
	return false;
}

/* Fetches all rows of the driver.  The number that it returns is only trusted up to the size of the buffer. */
static nvmlReturn_t fetch(const struct question *question, struct rows *rows)
{
	unsigned int wanted = FIRST_ROWS;

	for (;;) {
		if (!rows_room(rows, wanted, question->size))
			return NVML_ERROR_UNKNOWN;
		unsigned int room = rows->count, count = room;
		nvmlReturn_t result = question->ask(question, &count, rows->at);
		if (result == NVML_SUCCESS) {
			rows->count = count < room ? count : room;
			return result;
		}
		rows_free(rows);
		if (result != NVML_ERROR_INSUFFICIENT_SIZE)
			return result;
		if (count <= room || count > MAX_ROWS)
			return NVML_ERROR_UNKNOWN;
		wanted = count + SPARE_ROWS;
	}
}

/* Moves the tenant's rows to the front, and sets the pids to show. */
static unsigned int keep_own(const struct question *question, struct rows *rows)
{
	unsigned int kept = 0;

	gl_segment_reap();
	for (unsigned int i = 0; i < rows->count; i++) {
		char *row = (char *)rows->at + i * question->size;
		uint32_t pid;
		memcpy(&pid, row + question->pid_at, sizeof(pid));
		pid = gl_own_pid(pid);
		if (!pid)
			continue;
		char *to = (char *)rows->at + kept++ * question->size;
		memmove(to, row, question->size);
		memcpy(to + question->pid_at, &pid, sizeof(pid));
	}
	return kept;
}

/* NVML's protocol, with the tenant's rows only.  empty: the answer if there is none. */
static nvmlReturn_t filtered(const struct question *question, unsigned int *count, void *out, nvmlReturn_t empty)
{
	struct rows rows;
	unsigned int room = *count;
	nvmlReturn_t result = fetch(question, &rows);

	if (result != NVML_SUCCESS)
		return result;
	unsigned int kept = keep_own(question, &rows);
	*count = kept;
	if (!kept)
		result = empty;
	else if (kept > room || !out)
		result = NVML_ERROR_INSUFFICIENT_SIZE;
	else
		memcpy(out, rows.at, kept * question->size);
	rows_free(&rows);
	return result;
}

typedef nvmlReturn_t list_call(nvmlDevice_t device, unsigned int *count, void *infos);

static nvmlReturn_t ask_list(const struct question *question, unsigned int *count, void *rows)
{
	return ((list_call *)question->call)(question->device, count, rows);
}

#define FILTERED_LIST(name, type)                                                                            \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)                             \
	{                                                                                                    \
		unsigned int asked = count ? *count : 0;                                                     \
		if (gl_begin_nvml() != GL_ATTACHED || !count)                                                \
			return REAL(name)(device, count, infos);                                             \
		if (asked && !infos)                                                                         \
			return no_rows(REAL(name)(device, &asked, infos));                                   \
		struct question question = {.ask = ask_list, .device = device, .call = (void *)REAL(name),   \
					    .size = sizeof(type), .pid_at = offsetof(type, pid)};            \
		return filtered(&question, count, infos, NVML_SUCCESS);                                      \
	}

FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

#define DETAIL_V1 ((unsigned int)(sizeof(nvmlProcessDetailList_t) | (1u << 24)))
#define UTILIZATION_V1 ((unsigned int)(sizeof(nvmlProcessesUtilizationInfo_t) | (1u << 24)))
_Static_assert(sizeof(nvmlProcessDetail_v1_t) <= MAX_ROW_BYTES && sizeof(nvmlProcessUtilizationInfo_v1_t) <= MAX_ROW_BYTES &&
		       sizeof(nvmlProcessUtilizationSample_t) <= MAX_ROW_BYTES,
	       "rows");

static nvmlReturn_t ask_details(const struct question *question, unsigned int *count, void *rows)
{
	nvmlProcessDetailList_t list = {question->version, question->mode, *count, rows};
	nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(question->device, &list);
	*count = list.numProcArrayEntries;
	return result;
}

/* Rows of an unknown version cannot be assigned to tenants, so they are not shown. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
	if (gl_begin_nvml() != GL_ATTACHED || !list)
		return REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
	if (list->version != DETAIL_V1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	struct question question = {.ask = ask_details, .device = device, .version = list->version, .mode = list->mode,
				    .size = sizeof(nvmlProcessDetail_v1_t),
				    .pid_at = offsetof(nvmlProcessDetail_v1_t, pid)};
	unsigned int none = 0;
	if (list->numProcArrayEntries && !list->procArray)
		return no_rows(ask_details(&question, &none, NULL));
	if (list->mode != NVML_PROCESS_MODE_COMPUTE)
		return filtered(&question, &list->numProcArrayEntries, list->procArray, NVML_SUCCESS);
	nvmlReturn_t result = ask_details(&question, &none, NULL);
	return has_list(result) ? gl_own_processes(device, &list->numProcArrayEntries, list->procArray, GL_PROCESS_DETAIL) : result;
}

static nvmlReturn_t ask_samples(const struct question *question, unsigned int *count, void *rows)
{
	return REAL(nvmlDeviceGetProcessUtilization)(question->device, rows, count, question->since);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
					     unsigned int *count, unsigned long long since)
{
	if (gl_begin_nvml() != GL_ATTACHED || !count)
		return REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since);
	struct question question = {.ask = ask_samples, .device = device, .since = since, .size = sizeof(*samples),
				    .pid_at = offsetof(nvmlProcessUtilizationSample_t, pid)};
	return filtered(&question, count, samples, NVML_ERROR_NOT_FOUND);
}

static nvmlReturn_t ask_utilization(const struct question *question, unsigned int *count, void *rows)
{
	nvmlProcessesUtilizationInfo_t info = {.version = question->version, .processSamplesCount = *count,
					       .lastSeenTimeStamp = question->since, .procUtilArray = rows};
	nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(question->device, &info);
	*count = info.processSamplesCount;
	return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
	if (gl_begin_nvml() != GL_ATTACHED || !info)
		return REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
	if (info->version != UTILIZATION_V1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	struct question question = {.ask = ask_utilization, .device = device, .version = info->version,
				    .since = info->lastSeenTimeStamp, .size = sizeof(*info->procUtilArray),
				    .pid_at = offsetof(nvmlProcessUtilizationInfo_v1_t, pid)};
	return filtered(&question, &info->processSamplesCount, info->procUtilArray, NVML_ERROR_NOT_FOUND);
}

/* nvidia-smi gets its process table through NVML's private export table, past these hooks, and shows every process of
 * its pid namespace (measured, driver 580.159): within a namespace tenants see each other there.  Some of its queries
 * take the names from here. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	if (gl_begin_nvml() == GL_ATTACHED && name && length) {
		gl_segment_reap();
		if (!gl_own_pid(pid) && pid != gl_self.pid)
			return NVML_ERROR_NOT_FOUND;
	}
	return REAL(nvmlSystemGetProcessName)(pid, name, length);
}
