/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory figures of the card from NVML; used by overhead.c and context_cost.c.
 */
#ifndef GL_NVML_USAGE_H
#define GL_NVML_USAGE_H

#include "shim.h"

#pragma GCC visibility push(hidden)

/* Bytes that this process holds on the card, by NVML.  False: it is not listed, or there is no NVML. */
bool gl_nvml_own_bytes(struct gl_gpu *gpu, uint64_t *bytes);
/* Bytes used on the card by all processes.  False: not known. */
bool gl_nvml_used_bytes(struct gl_gpu *gpu, uint64_t *bytes);

/* The processes listed before this process's first context, from which its listed pid is found afterwards. */
void gl_nvml_listing_take(struct gl_gpu *gpu, struct gl_nvml_listing *listing);
void gl_nvml_listing_recognise(struct gl_gpu *gpu, const struct gl_nvml_listing *before);

#pragma GCC visibility pop

#endif
