/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated machine: what all processes share in one mapped file.
 *
 * Glossary
 *   machine   the whole shared state: GPUs, processes, queues, shared blocks
 *   model     the constant facts of a GPU, taken from a profile file when the state is created
 *   slot      one process' place in the machine; it holds a record lock on a byte of the state file,
 *             which the kernel drops when the process dies, however it dies
 *   queue     the work of one context on one GPU, in submission order; a ring of items
 *   lane      items of a queue that run one after the other; streams are spread over the lanes.  So many
 *             lanes work at once as the card runs kernels of one context
 *   item      one piece of GPU work: what it costs alone, and when it was done
 *   gate      an item that takes no GPU time but stays shut until its process opens it (host functions)
 *   slice     the time for which the GPU serves one queue before it looks at the next one with work
 *   card      a GPU as it is plugged in; a MIG device is a GPU too, with a card as its parent, and has
 *             memory, contexts and time of its own.  Cards come first in the machine, then MIG devices
 *   vgpu      a part of a card that a virtual machine has; only told of, nothing runs on it here
 *   shared    a block of device memory that more than one process may hold (exported or opened memory)
 *   flag      an aligned 64-bit word of device memory that work in a queue waits for or sets
 *   to spin   to have the card, and be counted as busy, without getting on: what waits for a flag does so
 *   together  cards that share flags or wait for each other's events; their schedules are worked out from one clock
 *
 * Nothing here is a running total that a dead process could leave wrong: what a card has in use is
 * added up from the slots and shared blocks each time, and a dead slot is swept before it is counted.
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
	SIM_QUEUE_DEPTH = 1024, /* unfinished items a context may have; the next launch blocks, as on a card */
	SIM_MAX_SHARED = 512,
	SIM_MAX_LANES = 16,
	SIM_MAX_FLAGS = 1024,
	SIM_BUCKETS = 32, /* history of busy time, for utilisation figures */
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
	uint64_t total_bytes, reserved_bytes; /* reserved: kept by the driver, never given to programs */
	uint64_t context_bytes, module_bytes, lazy_bytes;
	uint64_t pool_step_bytes, granule_bytes;
	uint64_t kernel_ns, kernel_ns_per_block, event_ns;
	uint64_t timeslice_ns;
	uint64_t copy_bytes_per_us, memory_bytes_per_us;
	uint64_t cc_major, cc_minor, sm_count, speed, pci_bus, concurrency;
	uint64_t count; /* only while reading a profile: how many such GPUs */
	char mig[256];  /* cards: "1g.10gb,-,2g.20gb" ('-' leaves a number out), "on" (no device yet), "" (off) */
	/* Cards of a vGPU host; see nvml_vgpu.c. */
	char vgpu[16], vgpu_type[64]; /* "sriov" or "non-sriov"; "": no vGPU host */
	uint64_t vgpus, vgpu_memory_bytes, vgpu_policy, vgpu_arr, vgpu_timeslice_ns, vgpu_sm, vgpu_overruns, vgpu_claim;
	uint64_t vgpu_accounting;
};

struct sim_gpu {
	struct sim_model model;
	uint64_t clock_ns;     /* the schedule is worked out up to here (CLOCK_MONOTONIC) */
	uint64_t together;     /* bit per GPU: itself, and those that it shares flags or waits with; 0: itself alone */
	uint64_t waited;       /* bit per GPU that work here has waited for by an event */
	uint64_t slice_end_ns; /* when the queue being served must make room */
	uint32_t serving;      /* queue, or SIM_NO_QUEUE */
	uint32_t lost;         /* fallen off the bus: every call about it fails */
	uint32_t parent;       /* of a MIG device: its card; SIM_NO_GPU: this is a card */
	uint32_t mig_enabled;  /* cards: in MIG mode */
	uint32_t mig_index, gpu_instance, compute_instance, gone; /* MIG devices; gone: taken apart */
	char profile[32];      /* "1g.10gb" */
	uint32_t xid, xids;    /* the last error told by gpulimit_sim_xid, and how many there were */
	uint64_t busy_ns;
	uint64_t bucket_id[SIM_BUCKETS], bucket_busy_ns[SIM_BUCKETS];
};

enum { SIM_SLOT_FREE = 0, SIM_SLOT_CUDA = 1, SIM_SLOT_NVML = 2 };

struct sim_proc {
	uint32_t kind;
	int32_t pid; /* as the process itself sees it */
	uint64_t start_ticks, pidns; /* start_ticks: mixed with something that changes at exec */
	uint64_t bytes[SIM_MAX_GPUS];
	uint64_t gpu_ns[SIM_MAX_GPUS];
	uint64_t first_busy_ns[SIM_MAX_GPUS];
	uint32_t contexts[SIM_MAX_GPUS];
	uint64_t bucket_id[SIM_MAX_GPUS][SIM_BUCKETS];
	uint32_t bucket_busy_ns[SIM_MAX_GPUS][SIM_BUCKETS];
	char name[64];
};

enum sim_op {
	SIM_PLAIN,      /* work of a certain length */
	SIM_SET,        /* sets a flag when it is done */
	SIM_AWAIT,      /* a kernel that spins until the flag has come that far */
	SIM_RENDEZVOUS, /* a kernel that counts itself at the flag, spins until all have, and goes on while all run */
	SIM_WAIT,       /* not a kernel: its lane waits, and the card is free for others */
};
enum sim_how { SIM_GEQ, SIM_EQ, SIM_AND, SIM_NOR, SIM_REACHED }; /* the driver's four, and unsigned >= */

struct sim_item {
	uint64_t cost_ns; /* alone on the card; SIM_GATE_SHUT: waits for its process */
	uint64_t progress_ns;
	uint64_t done_ns; /* CLOCK_MONOTONIC; valid once done */
	uint64_t after;   /* one past the item that must be done first; 0: none */
	uint64_t behind;  /* likewise: the barrier or fence before it */
	uint64_t next;    /* the next item of the lane; valid if it is not the lane's last */
	uint64_t other_id, other_after; /* what must be done first in another context's queue: its id, and one past the item */
	uint32_t other;   /* that queue; meant if other_after is not 0 */
	uint32_t lane;
	bool done;
	bool barrier; /* starts when all items before it are done, but those that stand apart */
	bool fence;   /* a barrier also for those */
	bool apart;   /* of a stream that does not wait for the legacy stream, nor that for it */
	uint8_t op, how;
	uint32_t flag, bails; /* bails: counts those that gave up */
	uint64_t value, mask; /* mask: the bits of the flag that are meant */
	uint64_t limit_ns;    /* SIM_AWAIT: gives up so long after its start; 0: never */
	uint64_t began_ns;    /* when it was first served; 0: not yet */
	uint64_t arrived;     /* SIM_RENDEZVOUS: how often the flag had changed with its arrival; 0: not yet */
};

/* A change writes the value that is not current and then counts itself: a process that dies on the way changes nothing. */
struct sim_flag {
	uint64_t id;       /* 0: free */
	uint64_t shared;   /* block of shared memory, or 0: memory of one process */
	uint32_t slot;     /* that process; SIM_NO_SLOT: shared, or the memory is gone */
	uint64_t at;       /* offset in the shared block, or address */
	uint64_t values[2], changes; /* the value is values[changes % 2] */
	uint64_t written;  /* as of this change a process has written the value to its memory */
	uint64_t cards;    /* bit per GPU that has worked with it */
};

struct sim_queue {
	uint32_t used, proc, gpu, lanes;
	uint64_t id; /* of its context */
	uint64_t head, tail; /* all items below head are done; items ever submitted */
	uint64_t last_barrier, last_fence; /* one past them */
	uint64_t lane_head[SIM_MAX_LANES], lane_tail[SIM_MAX_LANES]; /* first not done, one past the last; empty if not below */
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
	uint32_t gpu, owner; /* owner: slot that NVML shows it for */
	uint64_t holders[SIM_MAX_PROCS / 64];
};

struct sim_machine {
	uint64_t magic;
	uint32_t layout, ready;
	uint64_t size_bytes;
	pthread_mutex_t lock;
	char config[512]; /* profile and overrides that made this machine */
	char driver_version[32];
	uint32_t cuda_version, ncards, ngpus; /* ngpus: cards and MIG devices */
	uint64_t next_id;
	uint64_t swept_ns; /* when dead slots were last looked for */
	struct sim_gpu gpus[SIM_MAX_GPUS];
	struct sim_proc procs[SIM_MAX_PROCS];
	struct sim_shared shared[SIM_MAX_SHARED];
	struct sim_vgpu vgpus[SIM_MAX_VGPUS];
	uint32_t next_vgpu;
	uint32_t flag_limit; /* flags at and above this one were never used */
	struct sim_flag flags[SIM_MAX_FLAGS];
	uint32_t queue_limit; /* queues at and above this one were never used */
	struct sim_queue queues[SIM_MAX_QUEUES];
	/* Apart from the queues, so that looking for work touches few pages. */
	struct sim_item items[SIM_MAX_QUEUES][SIM_QUEUE_DEPTH];
};

/* profile.c: fill the constant part of a new machine; false after a line on stderr */
bool sim_profile_load(struct sim_machine *m);
void sim_profile_config(char *out, size_t size);

/* partition.c; locked, or while the machine is made */
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
void sim_sweep(bool force); /* locked: drop what dead processes held */
int sim_slot_pid(uint32_t slot); /* locked: the pid as the caller's namespace sees it, 0 if dead or out of its sight */
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
bool sim_item_reached(const struct sim_queue *q, uint64_t item); /* nothing else must be done first */
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
uint32_t sim_flag_find(const struct sim_flag_place *place); /* SIM_NO_FLAG: nothing is known of it */
uint32_t sim_flag_take(const struct sim_flag_place *place, uint64_t value, uint32_t gpu); /* SIM_NO_FLAG: no room */
uint64_t sim_flag_value(uint32_t flag);
void sim_flag_write(uint32_t flag, uint64_t value, uint64_t mask);
void sim_card_waits(uint32_t gpu, uint32_t other); /* by an event */
void sim_flags_forget(uint32_t slot, uint64_t shared, uint64_t from, uint64_t bytes); /* that memory is gone */
void sim_flags_share(uint64_t shared, uint64_t from, uint64_t bytes); /* ours is shared from now on */

/* spin.c; all locked */
bool sim_item_met(const struct sim_item *item);
bool sim_item_arrive(struct sim_item *item, uint64_t clock_ns); /* the card gets to it; true if that changed a flag */
uint64_t sim_item_left(const struct sim_item *item, uint64_t clock_ns, bool *moves); /* how long its card may go on as it is */
bool sim_item_spins(const struct sim_item *item); /* does not take the card from other lanes */
void sim_item_effect(const struct sim_item *item);

/* fault.c: the first line of every exported function */
struct sim_fault;
struct sim_site {
	const char *name;
	int known; /* 0: environment not consulted yet */
	struct sim_fault *fault;
};
int sim_fault_enter(struct sim_site *site, int *code); /* 1: return *code at once */
void sim_fault_leave(struct sim_site *site);
void sim_fault_about(long gpu); /* which card this thread's next call is about */

/* procaddr.c */
int sim_proc_address(const char *name, void **pfn, int version, uint64_t flags, int *status);

#define SIM_EXPORT __attribute__((visibility("default")))

#endif
