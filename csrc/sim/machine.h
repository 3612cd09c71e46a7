/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated machine: state that all processes share in one mapped file.
 *
 * Glossary
 *   machine   the whole shared state: GPUs, processes, queues, shared blocks
 *   model     the constant properties of a GPU, read from a profile file when the state is created
 *   slot      one process' entry in the machine.  The process holds a record lock on a byte of the state file.
 *             The kernel drops the lock when the process dies for any reason
 *   queue     the work of one context on one GPU, in submission order; a ring of items
 *   lane      items of a queue that run one after the other.  Streams are spread over the lanes.  The number of
 *             lanes that work at once is the number of one context's kernels that the card runs at once
 *   item      one piece of GPU work: its cost when it runs alone, and the time when it was done
 *   gate      an item that takes no GPU time and stays shut until its process opens it (host functions)
 *   slice     the time for which the GPU serves one queue before it serves the next queue with work
 *   card      a physical GPU.  A MIG device is a GPU too: its parent is a card, and its memory, contexts and time
 *             are separate.  The machine lists cards first, then MIG devices
 *   vgpu      a part of a card that a virtual machine has.  It is only reported; no work runs on it here
 *   shared    a block of device memory that more than one process may hold (exported or opened memory)
 *   flag      an aligned 64-bit word of device memory that work in a queue waits for or sets
 *   to spin   to occupy the card, and count as busy, without progress.  A kernel that waits for a flag spins
 *   together  cards that share flags or wait for each other's events.  One clock drives their schedules
 *
 * No field is a running total that a dead process could leave wrong.  The memory in use on a card is summed from
 * the slots and shared blocks each time, and a dead slot is cleared before it is counted.
 * Every field is read and written under machine.lock, a robust mutex, unless a comment says otherwise.
 */
#ifndef GL_SIM_MACHINE_H
#define GL_SIM_MACHINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SIM_MAX_GPUS = 64, /* cards and MIG devices */
	SIM_MAX_VGPUS = 256,
	SIM_MAX_PROCS = 128,
	SIM_MAX_QUEUES = 256,
	SIM_QUEUE_DEPTH = 1024, /* unfinished items that a context may have; the next launch blocks, as on a real card */
	SIM_MAX_SHARED = 512,
	SIM_MAX_LANES = 16,
	SIM_MAX_FLAGS = 1024,
	SIM_BUCKETS = 32, /* history of busy time, for utilisation */
};
#define SIM_MAGIC 0x316d69734c475047ull /* "GPGLsim1" */
#define SIM_LAYOUT 9u
#define SIM_NO_QUEUE UINT32_MAX
#define SIM_NO_GPU UINT32_MAX
#define SIM_NO_FLAG UINT32_MAX
#define SIM_NO_SLOT UINT32_MAX
#define SIM_GATE_SHUT UINT64_MAX
#define SIM_BUCKET_NS 166666667ull /* NVML samples a card about six times a second */

struct sim_model {
	char name[96];
	char uuid[48]; /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
	uint64_t total_bytes, reserved_bytes; /* reserved: kept by the driver, never allocated to programs */
	uint64_t context_bytes, module_bytes, lazy_bytes;
	uint64_t pool_step_bytes, granule_bytes;
	uint64_t kernel_ns, kernel_ns_per_block, event_ns;
	uint64_t timeslice_ns;
	uint64_t copy_bytes_per_us, memory_bytes_per_us;
	uint64_t cc_major, cc_minor, sm_count, speed, pci_bus, concurrency;
	uint64_t count; /* only while a profile is read: the number of such GPUs */
	char mig[256];  /* cards: "1g.10gb,-,2g.20gb" ('-' leaves a number out), "on" (no device yet), "" (off) */
	/* Cards of a vGPU host; see nvml_vgpu.c. */
	char vgpu[16], vgpu_type[64]; /* "sriov" or "non-sriov"; "": no vGPU host */
	uint64_t vgpus, vgpu_memory_bytes, vgpu_policy, vgpu_arr, vgpu_timeslice_ns, vgpu_sm, vgpu_overruns, vgpu_claim;
	uint64_t vgpu_accounting;
};

struct sim_gpu {
	struct sim_model model;
	uint64_t clock_ns;     /* the schedule is computed up to this time (CLOCK_MONOTONIC) */
	uint64_t together;     /* bit per GPU: itself, and GPUs that it shares flags or waits with; 0: only itself */
	uint64_t waited;       /* bit per GPU whose events work here has waited for */
	uint64_t slice_end_ns; /* end of the slice of the queue being served */
	uint32_t serving;      /* queue, or SIM_NO_QUEUE */
	uint32_t lost;         /* fallen off the bus: every call for this GPU fails */
	uint32_t parent;       /* MIG devices: the card; SIM_NO_GPU: this is a card */
	uint32_t mig_enabled;  /* cards: in MIG mode */
	uint32_t mig_index, gpu_instance, compute_instance, gone; /* MIG devices; gone: destroyed */
	char profile[32];      /* "1g.10gb" */
	uint32_t xid, xids;    /* the last error set by gpulimit_sim_xid, and the number of errors */
	uint64_t busy_ns;
	uint64_t bucket_id[SIM_BUCKETS], bucket_busy_ns[SIM_BUCKETS];
};

enum { SIM_SLOT_FREE = 0, SIM_SLOT_CUDA = 1, SIM_SLOT_NVML = 2 };

struct sim_proc {
	uint32_t kind;
	int32_t pid; /* in the process' own pid namespace */
	uint64_t start_ticks, pidns; /* start_ticks: mixed with a value that changes at exec */
	uint64_t bytes[SIM_MAX_GPUS];
	uint64_t gpu_ns[SIM_MAX_GPUS];
	uint64_t first_busy_ns[SIM_MAX_GPUS];
	uint32_t contexts[SIM_MAX_GPUS];
	uint64_t bucket_id[SIM_MAX_GPUS][SIM_BUCKETS];
	uint32_t bucket_busy_ns[SIM_MAX_GPUS][SIM_BUCKETS];
	char name[64];
};

enum sim_op {
	SIM_PLAIN,      /* work of a given length */
	SIM_SET,        /* sets a flag when it is done */
	SIM_AWAIT,      /* a kernel that spins until the flag reaches the value */
	SIM_RENDEZVOUS, /* a kernel that adds 1 to the flag, spins until all have, and progresses while all run */
	SIM_WAIT,       /* not a kernel: its lane waits, and the card is free for other work */
};
enum sim_how { SIM_GEQ, SIM_EQ, SIM_AND, SIM_NOR, SIM_REACHED }; /* the driver's four, and unsigned >= */

struct sim_item {
	uint64_t cost_ns; /* time alone on the card; SIM_GATE_SHUT: waits for its process */
	uint64_t progress_ns;
	uint64_t done_ns; /* CLOCK_MONOTONIC; valid once done */
	uint64_t after;   /* one past the item that must be done first; 0: none */
	uint64_t behind;  /* one past the barrier or fence that must be done first; 0: none */
	uint64_t next;    /* the next item of the lane; valid if it is not the lane's last */
	uint64_t other_id, other_after; /* another context's queue: its id, and one past the item to be done first */
	uint32_t other;   /* that queue; valid if other_after is not 0 */
	uint32_t lane;
	bool done;
	bool barrier; /* starts when all items before it are done, except those with `apart` */
	bool fence;   /* a barrier that also waits for items with `apart` */
	bool apart;   /* its stream and the legacy stream do not wait for each other */
	uint8_t op, how;
	uint32_t flag, bails; /* bails: flag that counts the items that gave up */
	uint64_t value, mask; /* mask: the bits of the flag to compare or write */
	uint64_t limit_ns;    /* SIM_AWAIT: time after its start at which it gives up; 0: never */
	uint64_t began_ns;    /* time when it was first served; 0: not yet */
	uint64_t arrived;     /* SIM_RENDEZVOUS: number of the flag's changes including its own; 0: not arrived */
};

/* A change writes the value that is not current and then increments `changes`.  A process that dies in between
 * changes nothing. */
struct sim_flag {
	uint64_t id;       /* 0: free */
	uint64_t shared;   /* block of shared memory, or 0: memory of one process */
	uint32_t slot;     /* the process of unshared memory; SIM_NO_SLOT: shared, or the memory is gone */
	uint64_t at;       /* offset in the shared block, or address */
	uint64_t values[2], changes; /* the value is values[changes % 2] */
	uint64_t written;  /* value of `changes` up to which a process has written the flag to its memory */
	uint64_t cards;    /* bit per GPU that has used the flag */
};

struct sim_queue {
	uint32_t used, proc, gpu, lanes;
	uint64_t id; /* id of its context */
	uint64_t head, tail; /* all items below head are done; tail: number of items ever submitted */
	uint64_t last_barrier, last_fence; /* one past the last one of each */
	/* First item that is not done, and one past the last; the lane is empty if head is not below tail. */
	uint64_t lane_head[SIM_MAX_LANES], lane_tail[SIM_MAX_LANES];
};

struct sim_vgpu {
	uint32_t id, card; /* id 0: free */
	char uuid[48], vm_id[48], driver[32];
	uint64_t used_bytes;
	uint32_t sm, memory, encoder, decoder; /* percent */
	uint32_t license, processes;
};

struct sim_shared {
	uint64_t id; /* 0: free */
	uint64_t bytes;
	uint32_t gpu, owner; /* owner: slot of the process to which NVML assigns it */
	uint64_t holders[SIM_MAX_PROCS / 64];
};

struct sim_machine {
	uint64_t magic;
	uint32_t layout, ready;
	uint64_t size_bytes;
	pthread_mutex_t lock;
	char config[512]; /* profile and overrides from which this machine was made */
	char driver_version[32];
	uint32_t cuda_version, ncards, ngpus; /* ngpus: cards and MIG devices */
	uint64_t next_id;
	uint64_t swept_ns; /* time of the last search for dead slots */
	struct sim_gpu gpus[SIM_MAX_GPUS];
	struct sim_proc procs[SIM_MAX_PROCS];
	struct sim_shared shared[SIM_MAX_SHARED];
	struct sim_vgpu vgpus[SIM_MAX_VGPUS];
	uint32_t next_vgpu;
	uint32_t flag_limit; /* flags at and above this one were never used */
	struct sim_flag flags[SIM_MAX_FLAGS];
	uint32_t queue_limit; /* queues at and above this one were never used */
	struct sim_queue queues[SIM_MAX_QUEUES];
	/* Separate from the queues, so that a search for work touches few pages. */
	struct sim_item items[SIM_MAX_QUEUES][SIM_QUEUE_DEPTH];
};

/* profile.c: fills the constant part of a new machine; on failure prints a line to stderr and returns false */
bool sim_profile_load(struct sim_machine *m);
void sim_profile_config(char *out, size_t size);

/* partition.c; locked, or while the machine is created */
void sim_make_uuid(char *out, size_t size, const char *prefix, const char *seed, uint32_t index);
bool sim_mig_layout(struct sim_machine *m, uint32_t card, const char *layout);
bool sim_vgpu_add(struct sim_machine *m, uint32_t card);

/* state.c */
extern struct sim_machine *sim_machine;
extern uint32_t sim_slot; /* this library's slot in this process */
bool sim_attached(void);
bool sim_attach(uint32_t kind);
void sim_machine_lock(void);
void sim_machine_unlock(void);
void sim_sweep(bool force); /* locked: frees the slots and memory of dead processes */
int sim_slot_pid(uint32_t slot); /* locked: the pid in the caller's pid namespace; 0 if dead or not visible there */
uint64_t sim_gpu_used(uint32_t gpu); /* locked */
uint64_t sim_proc_used(uint32_t slot, uint32_t gpu); /* locked */
void sim_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline bool sim_lane_busy(const struct sim_queue *q, uint32_t lane)
{
	return q->lane_head[lane] < q->lane_tail[lane];
}

static inline struct sim_item *sim_item_at(const struct sim_queue *q, uint64_t item)
{
	return &sim_machine->items[q - sim_machine->queues][item % SIM_QUEUE_DEPTH];
}

/* clock.c */
uint64_t sim_now(void);
void sim_sleep_until(uint64_t ns);

/* lane.c; all locked */
bool sim_item_done(const struct sim_queue *q, uint64_t item);
bool sim_item_reached(const struct sim_queue *q, uint64_t item); /* true if all items that must be done first are done */
void sim_queues_repair(void);
void sim_queue_append(struct sim_queue *q, struct sim_item item);
bool sim_lane_ready(const struct sim_queue *q, uint32_t lane);
void sim_lane_finish(struct sim_queue *q, uint32_t lane, uint64_t when);
uint32_t sim_next_runnable(uint32_t gpu, uint32_t from);
bool sim_queue_runnable(const struct sim_queue *q, uint32_t gpu);

/* busy.c; all locked */
void sim_account(const struct sim_queue *q, uint64_t start, uint64_t ns);
uint32_t sim_gpu_utilisation(uint32_t gpu, uint64_t now);
uint32_t sim_proc_utilisation(uint32_t slot, uint32_t gpu, uint64_t now);

/* schedule.c; all locked */
void sim_gpu_advance(uint32_t gpu, uint64_t now);
uint64_t sim_gpu_forecast(const struct sim_queue *q, uint64_t item);
bool sim_gpu_contended(const struct sim_queue *q);

/* flag.c; all locked */
struct sim_flag_place {
	uint64_t shared, at;
	uint32_t slot;
};
uint32_t sim_flag_find(const struct sim_flag_place *place); /* SIM_NO_FLAG if there is no such flag */
uint32_t sim_flag_take(const struct sim_flag_place *place, uint64_t value, uint32_t gpu); /* SIM_NO_FLAG if there is no room */
uint64_t sim_flag_value(uint32_t flag);
void sim_flag_write(uint32_t flag, uint64_t value, uint64_t mask);
void sim_card_waits(uint32_t gpu, uint32_t other); /* `gpu` waits for an event of `other` */
void sim_flags_forget(uint32_t slot, uint64_t shared, uint64_t from, uint64_t bytes); /* the memory was freed */
void sim_flags_share(uint64_t shared, uint64_t from, uint64_t bytes); /* this process' memory is now shared */

/* spin.c; all locked */
bool sim_item_met(const struct sim_item *item);
bool sim_item_arrive(struct sim_item *item, uint64_t clock_ns); /* the card begins the item; true if a flag changed */
/* Returns the time for which the card may continue as it is.  *moves: false if the item spins meanwhile. */
uint64_t sim_item_left(const struct sim_item *item, uint64_t clock_ns, bool *moves);
bool sim_item_spins(const struct sim_item *item); /* true if it takes no GPU time from other lanes */
void sim_item_effect(const struct sim_item *item);

/* fault.c: the first line of every exported function */
struct sim_fault;
struct sim_site {
	const char *name;
	int known; /* 0: the environment has not been read yet */
	struct sim_fault *fault;
};
int sim_fault_enter(struct sim_site *site, int *code); /* 1: the caller must return *code at once */
void sim_fault_leave(struct sim_site *site);
void sim_fault_about(long gpu); /* sets the card of this thread's next call */

/* procaddr.c */
int sim_proc_address(const char *name, void **pfn, int version, uint64_t flags, int *status);

#define SIM_EXPORT __attribute__((visibility("default")))

#endif
