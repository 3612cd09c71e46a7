/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's figures of the card: the memory that this process holds there, and the memory used in all.  Only real NVML
 * functions are called, never our hooks, and NVML is started once per process (7 ms).
 *
 * NVML names processes by pid: driver 580 uses the pids of the caller's namespace, and lists no process that is
 * invisible there.  Other drivers may use the host's pids, which the daemon knows.  So the process that appears in the
 * list while our first context is made is this process.  If that is ambiguous, our row is the one of our own pid, else
 * of our pid on the host.
 */
#include <string.h>

#include "memory/nvml_usage.h"

#define PROCESSES 64
#define ESTIMATED "the memory that contexts and code take is estimated"

struct list {
	unsigned int count;
	nvmlProcessInfo_v2_t *info, few[PROCESSES];
	size_t mapped;
};

static bool nvml_started(void)
{
	if (GL_LIKELY(gl_load_acquire(&gl_self.nvml_started)))
		return gl_self.nvml_started == 1;
	gl_lock(&gl_self.nvml_lock);
	if (!gl_self.nvml_started) {
		bool there = gl_nvml_load();
		nvmlReturn_t r = there ? REAL(nvmlInit_v2)() : NVML_SUCCESS;
		bool starved = (!there || r != NVML_SUCCESS) && gl_no_descriptors(); /* this error may pass */
		if (starved && !gl_self.nvml_starved)
			gl_log(GL_WARN, "there is no file descriptor left for NVML: " ESTIMATED);
		else if (!there && !starved)
			gl_log(GL_INFO, "NVML is not there: " ESTIMATED);
		else if (r != NVML_SUCCESS && !starved)
			gl_log(GL_WARN, "NVML does not start (error %d): " ESTIMATED, r);
		gl_self.nvml_starved |= starved; /* logged once, tried again each time */
		if (!starved)
			gl_store_release(&gl_self.nvml_started, there && r == NVML_SUCCESS ? 1u : 2u);
	}
	gl_unlock(&gl_self.nvml_lock);
	return gl_self.nvml_started == 1;
}

static nvmlDevice_t handle_of(struct gl_gpu *gpu)
{
	char text[41];
	nvmlDevice_t handle = NULL;
	if (gl_load_acquire(&gpu->nvml_looked_up))
		return gl_load_relaxed(&gpu->nvml);
	gl_uuid_text(gpu->uuid, text);
	if (REAL(nvmlDeviceGetHandleByUUID)(text, &handle) != NVML_SUCCESS) {
		memcpy(text, "MIG", 3); /* CUDA gives the instance's UUID without telling that it is a MIG instance */
		if (REAL(nvmlDeviceGetHandleByUUID)(text, &handle) != NVML_SUCCESS)
			handle = NULL;
	}
	gl_store_relaxed(&gpu->nvml, handle);
	gl_store_release(&gpu->nvml_looked_up, 1u);
	return handle;
}

static void list_free(struct list *list)
{
	if (list->mapped)
		munmap(list->info, list->mapped);
}

typedef nvmlReturn_t processes_call(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);

static bool list_by(processes_call *call, nvmlDevice_t device, struct list *list)
{
	list->info = list->few;
	list->mapped = 0;
	list->count = PROCESSES;
	nvmlReturn_t r = call(device, &list->count, list->info);
	if (r == NVML_ERROR_INSUFFICIENT_SIZE && list->count < 1u << 16) {
		list->count += PROCESSES;
		list->mapped = list->count * sizeof *list->info;
		list->info = mmap(NULL, list->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (list->info == MAP_FAILED)
			return false;
		r = call(device, &list->count, list->info);
		if (r != NVML_SUCCESS)
			list_free(list);
	}
	return r == NVML_SUCCESS;
}

static bool list_compute(nvmlDevice_t device, struct list *list)
{
	return list_by(gl_has(GL_ID_nvmlDeviceGetComputeRunningProcesses_v3)
			       ? REAL(nvmlDeviceGetComputeRunningProcesses_v3)
			       : REAL(nvmlDeviceGetComputeRunningProcesses_v2),
		       device, list);
}

/* NVML lists clients of an MPS server in another list. */
static bool list_mps(nvmlDevice_t device, struct list *list)
{
	return list_by(gl_has(GL_ID_nvmlDeviceGetMPSComputeRunningProcesses_v3)
			       ? REAL(nvmlDeviceGetMPSComputeRunningProcesses_v3)
			       : REAL(nvmlDeviceGetMPSComputeRunningProcesses_v2),
		       device, list);
}

static uint32_t host_pid(void)
{
	return gl_self.own ? gl_load_relaxed(&gl_self.own->host_pid) : 0;
}

static bool find(const struct list *list, uint32_t pid, uint64_t *bytes)
{
	for (unsigned int i = 0; pid && i < list->count; i++)
		if (list->info[i].pid == pid && list->info[i].usedGpuMemory != UINT64_MAX) {
			*bytes = list->info[i].usedGpuMemory;
			return true;
		}
	return false;
}

static bool find_own(const struct list *list, uint64_t *bytes)
{
	uint32_t learned = gl_load_relaxed(&gl_self.listed_pid);
	if (learned)
		return find(list, learned, bytes);
	return find(list, gl_self.pid, bytes) || find(list, host_pid(), bytes);
}

bool gl_nvml_own_bytes(struct gl_gpu *gpu, uint64_t *bytes)
{
	struct list list;
	bool found = false;
	int kept = errno;
	nvmlDevice_t device = nvml_started() ? handle_of(gpu) : NULL;
	*bytes = 0;
	if (device && list_compute(device, &list)) {
		found = find_own(&list, bytes);
		list_free(&list);
	}
	if (device && !found && list_mps(device, &list)) {
		found = find_own(&list, bytes);
		list_free(&list);
	}
	errno = kept;
	return found;
}

bool gl_nvml_used_bytes(struct gl_gpu *gpu, uint64_t *bytes)
{
	nvmlMemory_t memory;
	int kept = errno;
	nvmlDevice_t device = nvml_started() ? handle_of(gpu) : NULL;
	bool known = device && REAL(nvmlDeviceGetMemoryInfo)(device, &memory) == NVML_SUCCESS;
	*bytes = known ? memory.used : 0;
	errno = kept;
	return known;
}

void gl_nvml_listing_take(struct gl_gpu *gpu, struct gl_nvml_listing *listing)
{
	struct list list;
	nvmlDevice_t device = nvml_started() ? handle_of(gpu) : NULL;
	listing->count = UINT32_MAX;
	if (!device || !list_compute(device, &list))
		return;
	if (list.count <= sizeof listing->pid / sizeof *listing->pid) {
		listing->count = list.count;
		for (unsigned int i = 0; i < list.count; i++)
			listing->pid[i] = list.info[i].pid;
	}
	list_free(&list);
}

static bool was_there(const struct gl_nvml_listing *listing, uint32_t pid)
{
	for (uint32_t i = 0; i < listing->count; i++)
		if (listing->pid[i] == pid)
			return true;
	return false;
}

/* Finds this process among the new rows: by either of its pids, else the only new one. */
static uint32_t recognised(const struct list *list, const struct gl_nvml_listing *before)
{
	uint32_t appeared = 0, last = 0, host = host_pid();
	bool as_host = false;
	for (unsigned int i = 0; i < list->count; i++) {
		uint32_t pid = list->info[i].pid;
		if (was_there(before, pid))
			continue;
		if (pid == gl_self.pid)
			return pid;
		as_host |= pid == host;
		appeared++;
		last = pid;
	}
	return as_host ? host : appeared == 1 ? last : 0;
}

void gl_nvml_listing_recognise(struct gl_gpu *gpu, const struct gl_nvml_listing *before)
{
	struct list list;
	uint64_t bytes;
	nvmlDevice_t device = nvml_started() ? handle_of(gpu) : NULL;
	if (!device || before->count == UINT32_MAX || !list_compute(device, &list))
		return;
	uint32_t pid = recognised(&list, before);
	/* Another process that appeared at the same time is not taken for this one as long as one of our own pids is
	 * listed. */
	if (pid && (pid == gl_self.pid || pid == host_pid() || !find_own(&list, &bytes)))
		gl_store_relaxed(&gl_self.listed_pid, pid);
	list_free(&list);
}
