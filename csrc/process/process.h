/* SPDX-License-Identifier: Apache-2.0
 *
 * This process: its state, its devices, who it is and what it prints, by file.
 */
#ifndef GL_PROCESS_H
#define GL_PROCESS_H

#include "abi.h"
#include "base/sys.h"
#include "daemon/daemon.h"
#include "layout.h"
#include "lookup/lookup.h"
#include "quota/quota.h"

#pragma GCC visibility push(hidden)

/* ---- log.c: capped, prefixed lines on stderr, by GPULIMIT_LOG ---- */

enum gl_level { GL_ERROR, GL_WARN, GL_INFO, GL_DEBUG };
/* GL_ERROR is printed at the default level too; reserved for "nothing works, and why": once per process. */
void gl_log(enum gl_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- process.c: this process's state ---- */

enum gl_mode {
	GL_NEW = 0,         /* no CUDA or NVML call yet */
	GL_TRANSPARENT = 1, /* no quota and no tenant: hand every call on */
	GL_ATTACHED = 2,    /* under quota */
	GL_FAILED = 3,      /* quota unreadable or unenforceable: every CUDA call fails */
};

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
	uint64_t overhead_seen;     /* what the last measurement said; a lower one must be seen twice (overhead.c) */
	uint64_t overhead_at_bytes; /* lowest that was charged in all since the last measurement */
	uint64_t overhead_with_bytes; /* what was charged in all at the last measurement */
	uint32_t moving;            /* calls under way between whose start and end books and card may differ */
	uint64_t overhead_at_ns;
	uint32_t overhead_reserves; /* reservations since the last measurement */
	uint32_t overhead_dirty;    /* something happened that costs memory nobody asked for */
	uint32_t overhead_blind;    /* this process's use of the card cannot be seen here */
	uint32_t nvml_looked_up;
	nvmlDevice_t nvml;          /* NULL: NVML does not know the card, or is not there */
	struct gl_lock context_lock; /* contexts are made and ended one at a time */
	CUcontext primary;           /* handle of the primary context, once seen */
	struct gl_lock pool_lock;    /* stream-ordered allocations and graph nodes are charged one at a time */
	struct gl_lock books_lock;   /* the pools' and graphs' charges; never held across gl_reserve */
	struct gl_pool *pools;
	uint32_t pool_count, pool_room;
	uint64_t pool_step;          /* by which pools were seen to grow; 0: not yet (pool_growth.c) */
	uint32_t graph_memory;       /* 1 once a graph with memory nodes was seen: gl_graph_memory_launched is wanted */
	uint64_t graph_peak_bytes;   /* sum over living graphs */
	uint64_t graph_charged_bytes;
	uint64_t graph_unused_bytes; /* of these, not taken from the card yet */
};

struct gl_pool;

struct gl_blocks;
struct gl_meter;

struct gl_process {
	uint32_t state;      /* enum gl_mode, for CUDA calls */
	uint32_t nvml_state; /* the same for NVML calls: a program that only asks NVML never loads CUDA */
	uint32_t attached;   /* what the environment says: enum gl_mode, once read */
	uint32_t pid;
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
	struct gl_lock reap_lock;
	struct gl_lock nvml_lock;
	uint32_t listed_pid;   /* by which NVML lists this process, if not by its own */
	uint32_t nvml_started; /* 0 not tried, 1 this process may ask NVML, 2 it is not there */
	struct gl_blocks *blocks;
	uint32_t sparse_arrays; /* 1: made here; they may hold memory of cuMemCreate without our seeing (hook_vmm.c) */
	uint64_t next_id;      /* for blocks that outlive their handle */
	struct gl_meter *meter;
	uint32_t capturing;    /* captures open or about to begin in this process, as seen by the hooks */
	uint32_t marking;      /* threads that mark other streams than the one they launch in (meter.c) */
	uint32_t log_lines;
	uint32_t log_level;    /* 1 + enum gl_level; 0: not read yet */
	struct gl_daemon daemon;
};
extern struct gl_process gl_self;

int gl_begin_slow(void);
int gl_begin_nvml_slow(void);
/* First line of every CUDA hook: the state, after setting up at the first call.  ~1 ns. */
static inline int gl_begin(void)
{
	int state = (int)gl_load(&gl_self.state);
	return GL_LIKELY(state != GL_NEW) ? state : gl_begin_slow();
}
/* First line of every NVML hook. */
static inline int gl_begin_nvml(void)
{
	int state = (int)gl_load(&gl_self.nvml_state);
	return GL_LIKELY(state != GL_NEW) ? state : gl_begin_nvml_slow();
}
/* What a CUDA call returns in a process whose quota cannot be enforced. */
#define GL_FAILED_RESULT CUDA_ERROR_NOT_PERMITTED

/* The usual opening of a CUDA hook: hands the call on when there is nothing to enforce. */
#define GL_ENTER(name, args)                                                                                 \
	do {                                                                                                 \
		int state_ = gl_begin();                                                                     \
		if (GL_UNLIKELY(state_ != GL_ATTACHED))                                                      \
			return state_ == GL_TRANSPARENT ? REAL(name) args : GL_FAILED_RESULT;                \
	} while (0)

/* For hooks of one shape: the parameters or arguments in brackets, without them. */
#define GL_REST(...) __VA_ARGS__

/* Wraps driver calls that the shim adds on its own: while any stream is being captured, many calls are
 * illegal and would spoil the capture, unless the thread says that it knows what it does. */
CUstreamCaptureMode gl_relax(void);
void gl_unrelax(CUstreamCaptureMode before);

/* ---- device.c ---- */

/* The gpu of a CUDA ordinal; NULL if there is none or CUDA is not initialised. */
struct gl_gpu *gl_gpu_of(CUdevice dev);
/* The gpu of the calling thread's current context; NULL without one. */
struct gl_gpu *gl_gpu_current(void);
/* Adds an entry with the quota that the environment gives the card.  index: NVML's, or -1. */
struct gl_device *gl_device_add(const uint8_t uuid[16], int index, uint64_t card_bytes, uint64_t *own_limit,
				uint32_t *own_percent, uint32_t *entry);
bool gl_uuid_bytes(const char *text, uint8_t out[16]);
/* The limit in force now: the smaller of the tenant's, this process's and the card. */
uint64_t gl_limit_bytes(const struct gl_gpu *gpu);
/* What the daemon's policy says of the gpu; NULL without a daemon (policy.c). */
const struct gl_policy_device *gl_policy_of(const struct gl_gpu *gpu);
/* Percent of GPU time that the tenant may use now (bucket.c). */
uint32_t gl_compute_percent(const struct gl_gpu *gpu);
/* Bytes that all processes of the tenant have reserved; dead ones are given back first. */
uint64_t gl_used_bytes(const struct gl_gpu *gpu);

/* ---- identity.c: who this process is ---- */

struct gl_identity {
	uint64_t start_ticks, pid_namespace;
	char name[16];
};
struct gl_identity gl_identity_read(void);
/* The tenant of a process that names none.  0 or negative errno. */
int gl_default_tenant(char out[GL_TENANT_NAME_BYTES]);

#pragma GCC visibility pop

#endif
