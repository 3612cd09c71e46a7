/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared machine: making it, joining it, and dropping what dead processes held.
 *
 * The file is made under flock, which the kernel releases.  A process proves that it lives by a POSIX
 * record lock on the byte of its slot; asking for the lock's owner also gives the pid in the asker's own
 * pid namespace.  Closing any descriptor of the file would drop these locks, so none is ever closed.
 * libcuda and libnvidia-ml in one process have a copy of this file each, and a slot each.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

#define SLOT_LOCKS (1ll << 40) /* record locks may lie beyond the end of the file */
#define SWEEP_NS 2000000ull

struct sim_machine *sim_machine;
uint32_t sim_slot = UINT32_MAX;
static int state_fd = -1;
static uint64_t my_start, my_pidns;
static pid_t attached_pid;

SIM_EXPORT const char gpulimit_sim_version[] = "gpulimit simulated driver 1";

static uint64_t start_ticks(void)
{
	char text[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	char *at = strrchr(text, ')'); /* the command name may hold spaces; field 22 is the 20th after it */
	for (int i = 0; at && i < 20; i++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* Detects exec: the objects of the replaced program are gone, as on a real card. */
static uint64_t image(void)
{
	uint64_t random = 0;
	const void *bytes = (const void *)getauxval(AT_RANDOM);

	if (bytes)
		memcpy(&random, bytes, sizeof(random));
	return random;
}

static uint64_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : (uint64_t)st.st_ino;
}

static bool is_me(const struct sim_proc *p)
{
	return p->pid == getpid() && p->start_ticks == my_start && p->pidns == my_pidns;
}

/* The owner of a slot's byte in this pid namespace; 0: none, -1: alive but in another namespace. */
static int lock_owner(uint32_t slot)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SLOT_LOCKS + slot, .l_len = 1 };

	if (fcntl(state_fd, F_GETLK, &lock))
		return -1;
	if (lock.l_type == F_UNLCK)
		return 0;
	return lock.l_pid > 0 ? lock.l_pid : -1;
}

int sim_slot_pid(uint32_t slot)
{
	const struct sim_proc *p = &sim_machine->procs[slot];

	if (p->kind == SIM_SLOT_FREE)
		return 0;
	if (is_me(p))
		return p->pid;
	int owner = lock_owner(slot);
	return owner < 0 ? 0 : owner;
}

static void drop_slot(uint32_t slot)
{
	struct sim_machine *m = sim_machine;

	for (uint32_t i = 0; i < SIM_MAX_QUEUES; i++)
		if (m->queues[i].used && m->queues[i].proc == slot)
			m->queues[i].used = 0;
	for (uint32_t i = 0; i < SIM_MAX_SHARED; i++) {
		struct sim_shared *s = &m->shared[i];
		uint64_t left = 0;
		if (!s->id)
			continue;
		s->holders[slot / 64] &= ~(1ull << (slot % 64));
		for (uint32_t w = 0; w < SIM_MAX_PROCS / 64; w++)
			left |= s->holders[w];
		if (left)
			continue;
		sim_flags_forget(SIM_NO_SLOT, s->id, 0, UINT64_MAX);
		s->id = 0;
	}
	sim_flags_forget(slot, 0, 0, UINT64_MAX);
	memset(&m->procs[slot], 0, sizeof(m->procs[slot]));
}

void sim_sweep(bool force)
{
	struct sim_machine *m = sim_machine;
	uint64_t now = sim_now();

	if (!force && now - m->swept_ns < SWEEP_NS)
		return;
	m->swept_ns = now;
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
		if (m->procs[i].kind == SIM_SLOT_FREE || is_me(&m->procs[i]) || lock_owner(i))
			continue;
		for (uint32_t gpu = 0; gpu < m->ngpus; gpu++)
			sim_gpu_advance(gpu, now);
		drop_slot(i);
	}
}

void sim_machine_lock(void)
{
	int rc = pthread_mutex_lock(&sim_machine->lock);

	if (rc == EOWNERDEAD) {
		pthread_mutex_consistent(&sim_machine->lock);
		sim_queues_repair();
		sim_sweep(true);
	}
}

void sim_machine_unlock(void)
{
	pthread_mutex_unlock(&sim_machine->lock);
}

uint64_t sim_proc_used(uint32_t slot, uint32_t gpu)
{
	uint64_t sum = sim_machine->procs[slot].bytes[gpu];

	for (uint32_t i = 0; i < SIM_MAX_SHARED; i++) {
		struct sim_shared *s = &sim_machine->shared[i];
		if (!s->id || s->gpu != gpu)
			continue;
		for (uint32_t w = s->owner; !(s->holders[w / 64] >> (w % 64) & 1); w = s->owner)
			s->owner = (w + 1) % SIM_MAX_PROCS; /* the owner is gone: the next holder inherits it */
		if (s->owner == slot)
			sum += s->bytes;
	}
	return sum;
}

uint64_t sim_gpu_used(uint32_t gpu)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++)
		if (sim_machine->procs[i].kind != SIM_SLOT_FREE)
			sum += sim_machine->procs[i].bytes[gpu];
	for (uint32_t i = 0; i < SIM_MAX_SHARED; i++)
		if (sim_machine->shared[i].id && sim_machine->shared[i].gpu == gpu)
			sum += sim_machine->shared[i].bytes;
	return sum;
}

static void state_path(char *path, size_t size)
{
	const char *given = getenv("GPULIMIT_SIM_STATE");

	if (given && *given)
		snprintf(path, size, "%s", given);
	else
		snprintf(path, size, "/dev/shm/gpulimit-sim-%u", (unsigned)getuid());
}

static bool anybody_alive(void)
{
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++)
		if (lock_owner(i) || (sim_machine->procs[i].kind != SIM_SLOT_FREE && is_me(&sim_machine->procs[i])))
			return true;
	return false;
}

static struct sim_machine *map_state(void)
{
	void *at = mmap(NULL, sizeof(struct sim_machine), PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

static bool make_machine(const char *config)
{
	struct sim_machine *m = sim_machine;
	pthread_mutexattr_t attr;

	if (ftruncate(state_fd, 0) || ftruncate(state_fd, (off_t)sizeof(*m)) || !sim_profile_load(m))
		return false;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&m->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	snprintf(m->config, sizeof(m->config), "%s", config);
	m->layout = SIM_LAYOUT;
	m->size_bytes = sizeof(*m);
	m->next_id = 1;
	m->magic = SIM_MAGIC;
	__atomic_store_n(&m->ready, 1, __ATOMIC_RELEASE);
	return true;
}

/* Under flock: opens the machine, or makes a new one if it is missing, comes from another build, or was
 * made from other settings and has no process. */
static bool open_machine(const char *path)
{
	char config[sizeof(sim_machine->config)];
	struct stat st;

	if (fstat(state_fd, &st))
		return false;
	bool whole = st.st_size >= (off_t)sizeof(*sim_machine);
	if (!whole && ftruncate(state_fd, (off_t)sizeof(*sim_machine)))
		return false;
	if (!sim_machine && !(sim_machine = map_state()))
		return false;
	sim_profile_config(config, sizeof(config));
	bool ours = whole && sim_machine->magic == SIM_MAGIC && sim_machine->layout == SIM_LAYOUT &&
		sim_machine->size_bytes == sizeof(*sim_machine) && sim_machine->ready;
	bool asked = getenv("GPULIMIT_SIM_PROFILE") || getenv("GPULIMIT_SIM_SET") || getenv("GPULIMIT_SIM_GPUS");
	if (ours && (!asked || !strcmp(config, sim_machine->config)))
		return true;
	if (!anybody_alive())
		return make_machine(config);
	if (!ours)
		sim_complain("%s is in use by another build of the simulated driver", path);
	else
		sim_complain("%s is in use and was made from other settings (%s); joining it as it is", path, sim_machine->config);
	return ours;
}

static void read_name(char *name, size_t size)
{
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, name, size - 1);

	if (fd >= 0)
		close(fd);
	name[n > 0 ? n - 1 : 0] = 0;
}

static bool claim_slot(uint32_t kind)
{
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
		struct sim_proc *p = &sim_machine->procs[i];
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SLOT_LOCKS + i, .l_len = 1 };
		if (p->kind != SIM_SLOT_FREE || fcntl(state_fd, F_SETLK, &lock))
			continue;
		memset(p, 0, sizeof(*p));
		p->pid = getpid();
		p->start_ticks = my_start;
		p->pidns = my_pidns;
		read_name(p->name, sizeof(p->name));
		p->kind = kind;
		sim_slot = i;
		return true;
	}
	sim_complain("more than %d processes", SIM_MAX_PROCS);
	return false;
}

/* A fork inherits the mapping, but not the slot: the child must join by itself. */
bool sim_attached(void)
{
	return sim_machine && attached_pid == getpid();
}

bool sim_attach(uint32_t kind)
{
	char path[4096];

	state_path(path, sizeof(path));
	if (state_fd < 0)
		state_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (state_fd < 0) {
		sim_complain("%s: %s", path, strerror(errno));
		return false;
	}
	uint64_t started = start_ticks();
	my_pidns = pid_namespace();
	if (!started || !my_pidns) { /* without them it would not know its own slots */
		sim_complain("/proc/self cannot be read: %s", strerror(errno));
		return false;
	}
	my_start = started ^ image();
	while (flock(state_fd, LOCK_EX) && errno == EINTR)
		;
	bool ok = open_machine(path);
	if (ok) {
		sim_machine_lock();
		sim_sweep(true);
		ok = claim_slot(kind);
		sim_machine_unlock();
	}
	flock(state_fd, LOCK_UN);
	if (ok)
		attached_pid = getpid();
	return ok;
}
