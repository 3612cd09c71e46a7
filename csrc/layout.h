/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared-memory layout: all that two processes read of each other.  gcc compiles this file and cffi
 * reads the part between the marks, so neither side keeps a copy.  tests/golden/layout.txt pins every
 * offset; a change of meaning or place needs a new GL_LAYOUT_VERSION.
 *
 * Per tenant a usage segment, /dev/shm/gpulimit.u.<tenant>, written by the tenant's own processes; with a daemon
 * also a policy segment, gpulimit.p.<tenant>, and one for the node, gpulimit.state, both written by the daemon.  Rules: fixed-width fields, the unit in the name, no pointers, no floats, no mutex.  Counters
 * only grow.  Multi-writer fields are touched with atomics only.  A reader must treat every value as
 * hostile: any tenant may write anything here.
 *
 * Words marked "ledger" are changed by ledger.c alone: 48 bits of bytes below 16 bits of version, so that
 * an update prepared against an older value cannot be applied late.
 */
#ifndef GL_LAYOUT_H
#define GL_LAYOUT_H

#include <stdint.h>

/* cffi: begin */
#define GL_USAGE_MAGIC 0x55544d4c555047
#define GL_POLICY_MAGIC 0x594c4f504c5047
#define GL_STATE_MAGIC 0x544154534c5047
#define GL_LAYOUT_VERSION 6
#define GL_MAX_HEARTBEAT_AGE_NS 500000000
#define GL_MAX_DEVICES 16      /* GPUs that one tenant uses */
#define GL_MAX_NODE_DEVICES 64 /* cards and MIG devices of a node */
#define GL_MAX_SLOTS 512
#define GL_MAX_SHARES 512    /* exported memory of a tenant */
#define GL_TENANT_NAME_BYTES 64
#define GL_SHM_DIRECTORY "/dev/shm/"
#define GL_NAME_PREFIX "gpulimit."         /* of every file there */
#define GL_USAGE_PREFIX "gpulimit.u."      /* the tenant's name follows */
#define GL_POLICY_PREFIX "gpulimit.p."     /* likewise */
#define GL_STATE_NAME "gpulimit.state"     /* the node's, unless its daemon is given another name */
#define GL_LOCK_PREFIX "gpulimit.lock."    /* locked by the running daemon; what follows "gpulimit." in the node's name */
#define GL_ASIDE_PREFIX "gpulimit.aside."  /* files that are not in their place yet, or no longer */
#define GL_USER_MARK '@'               /* precedes the uid in the name if another user owns the plain name */

enum gl_priority {
	GL_PRIORITY_LOW = 1,
	GL_PRIORITY_NORMAL = 2,
	GL_PRIORITY_HIGH = 3 /* inside its request it preempts the lower ones */
};

enum gl_gang_mode {
	GL_GANG_AUTO = 0,  /* the tenant becomes a gang once its processes are seen to wait for each other */
	GL_GANG_OFF = 1,   /* never */
	GL_GANG_NAMED = 2  /* from the start, with all tenants of the same name */
};

enum gl_launch_kind {
	GL_KERNEL = 0,      /* cuLaunchKernel, cuLaunchKernelEx, the old cuLaunch family */
	GL_COOPERATIVE = 1, /* cooperative launches, by call or by attribute */
	GL_GRAPH = 2,       /* cuGraphLaunch */
	GL_CAPTURED = 3,    /* recorded into a graph, not run, not charged */
	GL_LAUNCH_KINDS = 4
};

enum gl_memory_kind {
	GL_MEM_PLAIN = 0,    /* cuMemAlloc, pitched */
	GL_MEM_MANAGED = 1,
	GL_MEM_ARRAY = 2,    /* arrays and mipmapped arrays */
	GL_MEM_POOL = 3,     /* what pools hold, used or not */
	GL_MEM_VMM = 4,      /* cuMemCreate */
	GL_MEM_GRAPH = 5,    /* allocation nodes of graphs */
	GL_MEM_OVERHEAD = 6, /* contexts, code, rounding: measured, since no call requests them by size */
	GL_MEM_KINDS = 7
};

/* First bytes of every segment. */
struct gl_header {
	uint64_t magic;
	uint32_t version;
	uint32_t size;          /* bytes of the whole segment */
	uint64_t created_ns;    /* CLOCK_REALTIME */
	uint32_t ready;         /* 1 once everything below is valid; written last */
	uint32_t slots_used;    /* slots [0, slots_used) may be in use; only grows */
	char tenant[64];
	uint32_t doorbell;      /* usage: futex that a process bumps when it begins to wait for GPU time or to have work */
	uint32_t shares_used;   /* usage: entries [0, shares_used) of share may be in use; only grows */
	uint64_t reserved[3];
};

/* One GPU as the tenant sees it; entries are added, never moved or removed. */
struct gl_device {
	uint8_t uuid[16];            /* all zero: unused entry */
	uint32_t ready;              /* 1 once uuid and limits are valid */
	uint32_t mig;                /* 1: a MIG instance */
	uint64_t card_bytes;         /* what the card has */
	uint64_t memory_limit_bytes; /* 0 .. card_bytes; card_bytes: no memory quota */
	uint64_t ledger;             /* ledger: bytes reserved by the whole tenant, or an operation under way */
	uint64_t context_bytes;      /* measured memory of one context; 0: not measured yet */
	uint64_t refused;            /* allocations refused because of the quota */
	uint64_t refused_by_card;    /* allocations inside the quota that the driver refused */
	uint32_t compute_limit_percent; /* 1..100; 100: no limit */
	uint32_t weight;
	/* The tenant's GPU-time bucket on this device (throttle.c). */
	uint64_t granted_ns;         /* GPU time granted since the segment was made; only grows */
	uint64_t spent_ns;           /* GPU time spent by all processes; only grows */
	uint64_t granted_at_ns;      /* CLOCK_MONOTONIC stamp up to which granted_ns has been filled */
	uint64_t throttled_ns;       /* sum over threads of time spent waiting for GPU time */
	uint64_t throttled_count;    /* launches that had to wait */
	uint32_t wake;               /* futex: bumped when time is granted or a limit changes */
	uint32_t suspended;          /* 1: launches wait until it is 0 again */
	uint64_t busy_until_ns;      /* CLOCK_MONOTONIC: when the GPU reached the tenant's last mark */
	uint64_t refund_ns;          /* in spent_ns, but charged too much; taken off coming charges */
	/* Allocations that wait for memory (wait.c). */
	uint32_t memory_wanted;      /* 1: a process of the tenant waits, or waited a moment ago */
	uint32_t memory_change;      /* futex: bumped, also by the daemon, when memory may have come free */
	uint32_t memory_freed;       /* bumped by the tenant's processes when they free memory that another tenant waits for */
	uint32_t reserved0;
	uint64_t memory_waits;       /* allocations that had to wait */
	uint64_t memory_waited_ns;   /* sum over threads */
	uint64_t reserved[2];
};

/* One process's account on one device. */
struct gl_account {
	uint64_t bytes;              /* ledger: all that this process has reserved */
	uint64_t kind_bytes[7];      /* the same by gl_memory_kind; for display, may lag */
	uint64_t contexts;
	uint64_t spent_ns;           /* GPU time charged to this process; only grows */
	uint64_t outstanding_ns;     /* GPU time submitted and not known to be finished */
	uint64_t launches[4];        /* by gl_launch_kind; only grow */
	/* Operation that this process has under way on the device (ledger.c). */
	uint64_t op_target_old;
	uint64_t op_target_new;
	uint64_t op_total;
	uint64_t op_slot;
	uint32_t waiting;            /* threads that wait for GPU time */
	uint32_t memory_waiting;     /* threads that wait for memory */
	uint64_t queue_end_ns;       /* CLOCK_MONOTONIC: expected end of outstanding work, run alone; 0: not known */
	uint64_t marked_ns;          /* CLOCK_MONOTONIC: when it last recorded a mark (marks.c) */
	uint32_t coarse;             /* 1: the driver refuses timing events: GPU time is measured by the wall clock (coarse.c) */
	uint32_t due_us;             /* CLOCK_MONOTONIC in us, its low half: by when the GPU should reach the next mark; 0: not known */
	uint64_t pool_unused_bytes;  /* unused bytes that its pools were seen to keep; 0 after it allocated from them */
};

/* One process.  A living process holds two locks on its slot (alive.h): a record lock on the first byte, from which the
 * kernel reports its pid, and a lock of an open file description on the second, which closing descriptors does not
 * drop. */
struct gl_slot {
	uint64_t generation;         /* odd: in use; even: free; +1 at each change */
	uint32_t pid;                /* as the process sees itself */
	uint32_t host_pid;           /* true pid, 0: not known */
	uint64_t start_ticks;        /* field 22 of /proc/pid/stat */
	uint64_t pid_namespace;      /* inode of /proc/self/ns/pid */
	char name[16];
	uint32_t asked;              /* bit of a device: another process of the tenant needs memory there; trim pools (pool_siblings.c) */
	uint32_t reserved0;
	uint64_t reserved[1];
	struct gl_account account[16];
};

/* One GPU in a tenant's policy: what the daemon allows.  Written by the daemon alone; tenants map it read-only. */
struct gl_policy_device {
	uint8_t uuid[16];
	uint32_t ready;              /* 1 once the entry is valid */
	uint32_t suspended;          /* 1: no launch may go */
	uint64_t memory_limit_bytes;
	uint32_t compute_limit_percent;   /* 1..100 */
	uint32_t compute_request_percent; /* 0..100 */
	uint32_t weight;
	uint32_t priority;           /* enum gl_priority */
	uint64_t granted_ns;         /* GPU time granted since the policy was made; a launch may go while spent < granted */
	uint64_t run_ahead_ns;       /* most GPU time that may be submitted and unfinished; 0: no bound */
	uint32_t change;             /* futex: bumped after every change of this entry */
	uint32_t shared;             /* 1: other tenants want this GPU too; 0: only the limit holds, not granted_ns */
	uint64_t exclusive_from_ns;  /* CLOCK_MONOTONIC: since then only this tenant has had work on the GPU; 0: not known */
	uint64_t memory_wait_ns;     /* longest that an allocation may wait for memory; 0: it is refused at once */
	uint32_t memory_wanted;      /* 1: some tenant waits for memory of this GPU: ring when you give some back */
	uint32_t sharers;            /* most processes that have work on this GPU, the tenant's included; 0: not known */
	uint64_t start_ns;           /* CLOCK_MONOTONIC: granted_ns is valid from then on; 0: at once */
	uint64_t reserved[3];
};

/* /dev/shm/gpulimit.p.<tenant>: one tenant's policy. */
struct gl_policy {
	struct gl_header header;
	uint64_t heartbeat_ns;       /* CLOCK_MONOTONIC; older than GL_MAX_HEARTBEAT_AGE_NS: the daemon is away */
	uint64_t daemon_start_ns;    /* CLOCK_REALTIME; distinguishes daemons that follow each other */
	uint32_t commands;           /* futex: bumped when a command waits for some process of the tenant */
	uint32_t gang;               /* enum gl_gang_mode */
	uint64_t reserved[5];
	struct gl_policy_device device[64];
};

/* One GPU of the node; every process can read it. */
struct gl_state_gpu {
	uint8_t uuid[16];
	uint32_t ready;
	uint32_t tenants;            /* with a process on it */
	uint64_t memory_total_bytes;
	uint64_t memory_used_bytes;  /* by NVML */
	uint64_t sampled_ns;         /* CLOCK_MONOTONIC of the last good NVML answer; 0: none yet */
	uint32_t utilisation_percent;
	uint32_t healthy;            /* 0: NVML fails or reports the GPU lost */
	uint64_t reserved[1];
};

/* /dev/shm/gpulimit.state: the node. */
struct gl_state {
	struct gl_header header;
	uint64_t heartbeat_ns;
	uint64_t daemon_start_ns;
	uint32_t daemon_pid;
	uint32_t gpus;
	uint64_t reserved[5];
	struct gl_state_gpu gpu[64];
};

/* The time of one device that is already charged to the tenant (coverage.c). */
struct gl_cover {
	uint64_t fine[256], coarse[256];
};

/* A tenant whose processes wait for each other on the GPU (gang.c): one limit stops and releases all of them at the
 * same moments.  GPU time here is time in which at least one of the gang's devices works. */
struct gl_gang {
	uint32_t devices;            /* a bit for each entry on which processes wait for each other; only grows */
	uint32_t is_closed;          /* 1: the limit is used up; launches wait until enough is granted again */
	uint64_t granted_ns;         /* granted by the wall clock at the limit; only grows */
	uint64_t granted_at_ns;      /* CLOCK_MONOTONIC stamp up to which granted_ns has been filled */
	uint64_t spent_ns;           /* only grows */
	uint64_t released;           /* launches released despite limit and turn, since running work waited for them */
	uint64_t released_at_ns;     /* CLOCK_MONOTONIC of the last one */
	uint64_t forgiven_ns;        /* time of work that waited for held launches, beyond its cost: not in spent_ns */
	uint64_t closed_at_ns;       /* CLOCK_MONOTONIC: when the limit was last used up */
	uint64_t opened_at_ns;       /* when there was enough again */
	uint64_t reserved[7];
	struct gl_cover cover;
};

/* Device memory that several processes of the tenant may hold (shares.c). */
struct gl_share {
	uint64_t key;                /* by which an importer finds it */
	uint64_t bytes;
	uint32_t device;             /* entry */
	uint32_t kind;               /* gl_memory_kind */
	uint32_t payer;              /* 1 + slot of the charged process; 0: none while the entry is made or ended */
	uint32_t in_pool;            /* 1: it lies in a pool of the payer's, which is charged as a whole */
	uint32_t adopted;            /* 1: the payer is not the process that made it */
	uint32_t taken;              /* 0: the entry is free */
	uint32_t place;              /* 0: a process of this tenant made it; else the tenant's place among importers (loans.h) */
	uint32_t reserved0;
	uint64_t common;             /* name of the memory among tenants */
	uint64_t holder[8];          /* a bit for each slot that holds it, including the payer's */
};

struct gl_usage {
	struct gl_header header;
	struct gl_device device[16];
	struct gl_slot slot[512];
	struct gl_cover cover[16];   /* as in device */
	struct gl_share share[512];
	struct gl_gang gang;
};
/* cffi: end */

_Static_assert(sizeof(struct gl_header) == 128, "layout");
_Static_assert(sizeof(struct gl_device) % 64 == 0, "layout");
_Static_assert(sizeof(struct gl_account) % 64 == 0, "layout");
_Static_assert(sizeof(struct gl_policy_device) % 64 == 0, "layout");
_Static_assert(sizeof(struct gl_state_gpu) % 64 == 0, "layout");
_Static_assert(sizeof(struct gl_slot) % 64 == 0, "layout");
_Static_assert(sizeof(struct gl_gang) % 64 == 0, "layout");
_Static_assert(GL_MAX_DEVICES == sizeof((struct gl_usage *)0)->device / sizeof(struct gl_device), "layout");
_Static_assert(GL_MAX_DEVICES == sizeof((struct gl_usage *)0)->cover / sizeof(struct gl_cover), "layout");
_Static_assert(GL_MAX_SHARES == sizeof((struct gl_usage *)0)->share / sizeof(struct gl_share), "layout");
_Static_assert(GL_MAX_SLOTS == sizeof((struct gl_share *)0)->holder * 8, "layout");
_Static_assert(GL_MAX_NODE_DEVICES == sizeof((struct gl_policy *)0)->device / sizeof(struct gl_policy_device), "layout");
_Static_assert(GL_MAX_NODE_DEVICES == sizeof((struct gl_state *)0)->gpu / sizeof(struct gl_state_gpu), "layout");

#endif
