/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of this process, which all folders above read: its devices, its tenant, its daemon; log lines, identity.
 */
#ifndef GL_STATE_H
#define GL_STATE_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "abi.h"
#include "base/sys.h"
#include "layout.h"
#include "protocol.h"
#include "quota/quota.h"

#pragma GCC visibility push(hidden)

/* ---- log.c: capped, prefixed lines on stderr, by GPULIMIT_LOG ---- */

enum gl_level { GL_ERROR, GL_WARN, GL_INFO, GL_DEBUG };
/* GL_ERROR is printed at the default level too.  Use it once per process, for the reason why no GPU call works. */
void gl_log(enum gl_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- state.c ---- */

enum gl_mode {
	GL_NEW = 0,         /* no CUDA or NVML call yet */
	GL_TRANSPARENT = 1, /* no quota and no tenant: all calls go to the driver unchanged */
	GL_ATTACHED = 2,    /* under quota */
	GL_FAILED = 3,      /* quota unreadable or unenforceable: every CUDA call fails */
};

struct gl_pool;
struct gl_blocks;
struct gl_meter;

struct gl_gpu {
	CUdevice ordinal;           /* as CUDA counts in this process */
	uint32_t index;             /* entry in the tenant's segment */
	uint8_t uuid[16];
	uint64_t total_bytes;       /* of the card */
	uint64_t own_limit_bytes;   /* from this process's environment; can only lower the tenant's */
	uint32_t own_compute_percent;
	struct gl_device *device;
	struct gl_account *account;
	struct gl_lock overhead_lock;
	uint64_t overhead_bytes;    /* charged now */
	uint64_t overhead_seen;     /* by the last measurement; a lower value must be measured twice (overhead.c) */
	uint64_t overhead_at_bytes; /* lowest total charge since the last measurement */
	uint64_t overhead_with_bytes; /* total charge at the last measurement */
	uint32_t in_flight;         /* running calls during which the account and the card may differ */
	uint64_t overhead_at_ns;
	uint32_t overhead_reserves; /* reservations since the last measurement */
	uint32_t overhead_dirty;    /* an event may have used memory that no call requested by size */
	uint32_t overhead_blind;    /* the memory that this process uses on the card cannot be measured */
	uint32_t nvml_looked_up;
	nvmlDevice_t nvml;          /* NULL: NVML does not know the card, or is not there */
	struct gl_lock context_lock; /* contexts are made and ended one at a time */
	CUcontext primary;           /* handle of the primary context, once seen */
	struct gl_lock pool_lock;    /* stream-ordered allocations and graph nodes are charged one at a time */
	struct gl_lock books_lock;   /* the pools' and graphs' charges; never held across gl_reserve */
	struct gl_pool *pools;
	uint32_t pool_count, pool_room;
	uint32_t pools_stale;        /* 1: pool pointers were freed; charges are updated after a wait for the GPU */
	uint64_t imported_bytes;     /* charged here for memory of processes outside the tenant */
	uint64_t pools_asked_ns;     /* when this process last asked its siblings to trim theirs */
	uint64_t pools_trimmed_ns;   /* when they were last trimmed for another process */
	uint64_t pool_step;          /* learned step by which pools grow; 0: not known yet (pool_growth.c) */
	uint32_t graph_memory;       /* 1 once a graph with memory nodes was seen: its launches are to be charged */
	uint64_t graph_peak_bytes;   /* the largest among the graphs that are still to run */
	uint64_t graph_charged_bytes;
	uint64_t graph_unused_bytes; /* of these, not taken from the card yet */
};

struct gl_address {
	union {
		struct sockaddr_un un;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} at;
	uint32_t size;
	char text[108];  /* for log lines */
	bool by_node;    /* it comes from the node, not from the environment */
	char token[GL_MAX_TOKEN_BYTES + 1]; /* shown with every request; "": none, on a Unix socket */
};

struct gl_daemon {
	uint32_t registered; /* this process is one of the daemon's workers */
	uint32_t view;       /* it registered for NVML alone */
	uint32_t lost;       /* no usable answer yet: registration is tried again later */
	uint32_t proposed;   /* the tenant's quota came from its environment */
	uint32_t agent;      /* the thread was started */
	uint32_t away;       /* the heartbeat was old at the last check */
	uint32_t entry[GL_MAX_DEVICES]; /* by segment entry: index in the policy at the last look-up */
	const struct gl_policy *policy; /* NULL: none; replaced, never unmapped */
	uint64_t policy_device, policy_inode;
	struct gl_address address;
	char tenant[64];
	char worker[64];
	uint64_t lost_ns;    /* when its connection last broke: earlier heartbeats do not count */
	uint64_t command;    /* number of the last command carried out */
	uint32_t host_pid;
	int usage_fd;        /* the tenant's usage segment from the daemon; -1: not received, or used up */
	bool closed;         /* GPULIMIT_ON_LOSS */
	bool waits_for_others; /* GPULIMIT_WAIT is set: also waits for what other processes hold now */
	uint64_t wait_ns;    /* GPULIMIT_WAIT */
	char body[8192];     /* of the registration: the thread must not read the environment */
};

struct gl_process {
	uint32_t state;      /* enum gl_mode, for CUDA calls */
	uint32_t nvml_state; /* the same for NVML calls: a program that only asks NVML never loads CUDA */
	uint32_t attached;   /* result of reading the environment, once: enum gl_mode */
	uint32_t pid;
	uint64_t lost_at_ns;   /* CLOCK_MONOTONIC of the last failure to join that may pass; 0: none */
	struct gl_lock setup_lock;
	uint32_t gpus_ready;
	int gpu_count;
	int slot;
	int fd;               /* of the usage segment */
	uint64_t inode, device; /* of the file behind it */
	struct gl_usage *usage;
	struct gl_slot *own;
	struct gl_quota quota; /* parsed from the environment */
	struct gl_gpu gpu[GL_MAX_DEVICES];
	struct gl_lock ledger_lock[GL_MAX_DEVICES]; /* by segment entry: one operation of this process at a time */
	int entry_error;      /* why the segment took no entry for a device */
	struct gl_lock reap_lock;
	struct gl_lock share_lock;
	uint16_t share_count[GL_MAX_SHARES]; /* blocks of this process, by entry (sharing.c) */
	struct gl_lock loan_lock;
	int loan_fd;          /* valid if loan_inode is not 0 (loan_file.c) */
	uint64_t loan_inode, loan_device;
	struct gl_lock nvml_lock;
	uint32_t listed_pid;   /* pid by which NVML lists this process, if not its own */
	bool nvml_starved;     /* it was logged that NVML has no descriptor to start with */
	uint32_t nvml_started; /* 0 not tried, 1 this process may ask NVML, 2 it is not there */
	struct gl_blocks *blocks;
	uint32_t sparse_arrays; /* 1: made here; they may hold memory of cuMemCreate that hooks do not see (hook_vmm.c) */
	uint64_t next_id;      /* for blocks that outlive their handle */
	struct gl_meter *meter;
	void (*look)(void);    /* takes in finished GPU work; NULL until there is any (time/idle.c) */
	void (*give)(void);    /* frees what another process asked for; NULL without pools (memory/pool_siblings.c) */
	uint32_t capturing;    /* captures open or about to begin in this process, as seen by the hooks */
	uint32_t marking;      /* threads that mark other streams than the one they launch in (launch.c) */
	uint32_t log_lines;
	uint32_t log_level;    /* 1 + enum gl_level; 0: not read yet */
	struct gl_daemon daemon;
};
extern struct gl_process gl_self;

/* Requests a measurement of the gpu's overhead before the next reservation. */
static inline void gl_overhead_mark(struct gl_gpu *gpu)
{
	if (gpu)
		gl_store_release(&gpu->overhead_dirty, 1u);
}

/* ---- identity.c: pid, start time and default tenant of this process ---- */

struct gl_identity {
	uint64_t start_ticks, pid_namespace;
	char name[16];
};
struct gl_identity gl_identity_read(void);
/* Start time of the process with that pid in this pid namespace; 0: it cannot be read. */
uint64_t gl_identity_start_ticks(uint32_t pid);
/* The tenant of a process whose environment names none.  0 or negative errno. */
int gl_default_tenant(char out[GL_TENANT_NAME_BYTES]);

#pragma GCC visibility pop

#endif
