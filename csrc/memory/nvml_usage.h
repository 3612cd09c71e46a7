/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory figures of the card from NVML; used by overhead.c and context_cost.c.
 */
#ifndef GL_CARD_H
#define GL_CARD_H

#include "shim.h"

#pragma GCC visibility push(hidden)

/* Bytes that this process holds on the card, by NVML.  False: it is not listed, or there is no NVML. */
bool gl_card_own_bytes(struct gl_gpu *gpu, uint64_t *bytes);
/* Bytes used on the card by all processes.  False: not known. */
bool gl_card_used_bytes(struct gl_gpu *gpu, uint64_t *bytes);

/* The processes listed before this process's first context, and finding out by which pid it is listed after it. */
void gl_card_remember(struct gl_gpu *gpu, struct gl_card_listing *listing);
void gl_card_recognise(struct gl_gpu *gpu, const struct gl_card_listing *before);

#pragma GCC visibility pop

#endif
