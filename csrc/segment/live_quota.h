/* SPDX-License-Identifier: Apache-2.0
 *
 * Changing a running tenant's quota from outside, in its segment.  Used by the command line; the shim only reads.
 */
#ifndef GL_LIVE_QUOTA_H
#define GL_LIVE_QUOTA_H

#include "layout.h"

/* cffi: begin */
/* Sets the limits of one device entry; takes effect at the next allocation or launch, and wakes the threads that wait
 * for GPU time.  memory_bytes UINT64_MAX and percent 0 leave that limit as it is.  0, or -EINVAL: no such device entry,
 * or more than 100 percent. */
int gl_live_set(struct gl_usage *usage, uint32_t device, uint64_t memory_bytes, uint32_t percent);
/* suspended 1: no launch may go until it is 0 again. */
int gl_live_suspend(struct gl_usage *usage, uint32_t device, uint32_t suspended);
/* cffi: end */

#endif
