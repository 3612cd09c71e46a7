/* SPDX-License-Identifier: Apache-2.0
 *
 * What graph_memory.c and graph_launch.c share.
 */
#ifndef GL_GRAPH_MEMORY_H
#define GL_GRAPH_MEMORY_H

#include "shim.h"

/* Flags in the count of a graph's or an executable graph's block. */
enum {
	CAPTURING = 1, /* graphs: the capture is still open */
	SPENT = 2,     /* it has run, or was made executable: it needs no further memory */
	AUTO_FREE = 4, /* executable graphs: a launch frees the memory of the previous one */
	UPLOADED = 8,  /* executable graphs: the driver may have taken its memory before the launch */
};
/* A graph may have memory on several gpus.  Handles are addresses of objects larger than GL_MAX_DEVICES bytes. */
static inline uint64_t gl_graph_key(const void *handle, uint32_t ordinal)
{
	return (uint64_t)(uintptr_t)handle + ordinal;
}

#pragma GCC visibility push(hidden)

/* Updates the charge to the driver's figure.  `reserved`: bytes reserved for it.  `plans`: graphs were added, removed
 * or run. */
void gl_graph_memory_settle(struct gl_gpu *gpu, uint64_t reserved, bool plans);
/* For gl_block_update: the graph needs no further memory; its previous count goes to *before, a uint32_t. */
bool gl_graph_spend(struct gl_block *block, void *before);

#pragma GCC visibility pop

#endif
