/* SPDX-License-Identifier: Apache-2.0 */
#include "node/replace.h"

#include "base/sys.h"

/* Headers older than Linux 3.15 lack it. */
#ifndef SYS_renameat2
#ifdef __x86_64__
#define SYS_renameat2 316
#else
#define SYS_renameat2 276
#endif
#endif

int gl_node_rename(const char *from, const char *to, int exchange)
{
	const unsigned int noreplace = 1, swap = 2;
	return (int)gl_syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, exchange ? swap : noreplace);
}
