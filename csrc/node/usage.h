/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's operations on a tenant's usage segment.  The tenant writes it, so every value is checked against its bounds.
 * The tenant may truncate the file at any time: that is -EFAULT, never a signal.  -EFAULT with a file of the right size
 * means a hole for which /dev/shm has no memory; the counters are still valid.
 */
#ifndef GL_NODE_USAGE_H
#define GL_NODE_USAGE_H

#include "layout.h"

/* cffi: begin */
/* One device entry, summed over the slots in use. */
struct gl_sample_device {
	uint8_t uuid[16];
	uint32_t ready;
	uint32_t waiting;        /* processes with a thread that waits for GPU time */
	uint32_t processes;      /* processes that have ever used GPU time */
	uint64_t spent_ns;
	uint64_t outstanding_ns;
	uint64_t queue_end_ns;   /* the latest of the processes' values */
	uint32_t memory_waiting; /* processes with a thread that waits for memory */
	uint32_t memory_freed;
	uint64_t memory_waits;
};

struct gl_sample {
	uint64_t created_ns;     /* a new value means that the segment was reset */
	uint32_t doorbell;       /* its value before all other fields were read */
	uint32_t slots;          /* slots in use */
	uint32_t gang_devices;   /* a bit for each entry on which processes wait for each other */
	uint32_t reserved0;
	struct gl_sample_device device[16];
};

/* 0; -EPROTO: the header is wrong; -EFAULT. */
int gl_node_sample(struct gl_usage *usage, struct gl_sample *sample);
/* Gives an empty segment its header.  0 or -EFAULT. */
int gl_node_usage_begin(struct gl_usage *usage, const char *tenant, uint64_t created_ns);
/* Wakes the tenant's threads that wait for memory of a device entry.  0, -EINVAL or -EFAULT. */
int gl_node_memory_changed(struct gl_usage *usage, uint32_t device);
/* Calls gl_slot_reap for every slot that may be in use.  Returns how many were cleared; -EFAULT; or -ETIMEDOUT if the
 * tenant's own writes delayed it for too long.  A slot that is a hole in the file is free, and stays a hole. */
int gl_node_reap(struct gl_usage *usage, int fd);
/* Keeps the file from being taken for abandoned while the daemon has it open.  0, or negative errno: -EAGAIN or -EACCES
 * if another process holds it. */
int gl_node_hold(int fd);
/* cffi: end */

#endif
