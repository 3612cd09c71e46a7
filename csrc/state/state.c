/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of this process.
 */
#include "state/state.h"

/* On pages of its own, so that fork can wipe them; 64 KiB is the largest page of the processors supported. */
#define PAGES __attribute__((aligned(65536)))
PAGES struct gl_process gl_self;
PAGES static char after_self __attribute__((used)); /* keeps other data off the last page */
