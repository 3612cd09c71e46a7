/* SPDX-License-Identifier: Apache-2.0
 *
 * Detects whether the tenant's processes wait for each other on the GPU.  The tenant is a gang then, and one limit
 * stops and releases all of them together (time/gang_limit.c).
 */
#ifndef GL_GANG_H
#define GL_GANG_H

#include "process/process.h"

#pragma GCC visibility push(hidden)

/* By the daemon, or without one by the environment. */
enum gl_gang_mode gl_gang_mode(void);
/* True if the gang's limit holds for the gpu. */
bool gl_gang_has(const struct gl_gpu *gpu);
/* Records that this process and others of the tenant wait for each other on the device of this entry. */
void gl_gang_note(uint32_t entry);
/* Records a call of a function that waits for other cards, known by its name; NULL: no name. */
void gl_gang_note_function(const struct gl_gpu *gpu, const char *name);

#pragma GCC visibility pop

#endif
