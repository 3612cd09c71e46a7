/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's side of the daemon, by file.  A process that is to have one (address.c) registers at its first CUDA call
 * (registration.c) over one HTTP exchange (http_client.c), learns its tenant and maps the tenant's policy (policy.c).
 * A thread takes commands, and registers again when the daemon comes back (agent.c).
 */
#ifndef GL_DAEMON_H
#define GL_DAEMON_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "daemon/http.h"
#include "layout.h"
#include "state/state.h"

#pragma GCC visibility push(hidden)

/* ---- address.c ---- */

enum { GL_DAEMON_WRONG = -1, GL_DAEMON_NONE = 0, GL_DAEMON_THERE = 1 };
/* Finds the daemon's address, by the node's file or the environment: GL_DAEMON_THERE, _NONE, or _WRONG (logged). */
int gl_address_find(struct gl_address *to);

/* ---- registration.c ---- */

/* Registers, if there is to be a daemon.  view: only NVML was called; one try, no waiting.
 * 1: registered, gl_self.daemon is filled in; 0: no daemon, only the environment counts; -1: refused or not reached
 * (logged), the process must not go on. */
int gl_register(bool view);
/* Repeats the same request; called by the thread.  0: the daemon knows this process; or negative errno: -EACCES if it
 * refuses. */
int gl_register_again(uint64_t deadline_ns);
/* Registers a process in full that registered as a view and now calls CUDA. */
int gl_register_whole(void);

/* ---- http_client.c ---- */

/* Files that came with an answer, in the order in which the daemon sends them; -1: not received.  A process that has
 * joined its segment requests the policy alone: closing a second descriptor of the segment would drop its locks. */
enum gl_file { GL_FILE_POLICY, GL_FILE_USAGE, GL_FILE_STATE, GL_FILES };
struct gl_files {
	int wanted; /* the first so many; the kernel does not deliver further ones */
	int fd[GL_FILES];
};
void gl_files_close(struct gl_files *files);

/* One request, one answer.  files may be NULL: none is wanted.  0, or negative errno: -ETIMEDOUT by the deadline;
 * -EPROTO: the answer was not HTTP (answer->wrong has the reason); others: as connect(2), or -ECONNRESET if the daemon
 * closed early.  tick, if not NULL, is called about once a second while waiting; if it returns false, the result is
 * -ECANCELED. */
int gl_http_ask(const struct gl_address *to, const char *request, size_t length, uint64_t deadline_ns, bool (*tick)(void),
		struct gl_answer *answer, struct gl_files *files);

/* ---- policy.c ---- */

/* Maps the file received from the daemon, or without one (fd < 0) /dev/shm/<name>, which must be the tenant's.  If it
 * is the file that is mapped already, that mapping stays.  fd stays open.  0 or negative errno. */
int gl_policy_map(int fd, const char *name, const char *tenant);
/* The policy for a card; one that allows nothing if the policy does not name the card; NULL without a policy. */
const struct gl_policy_device *gl_policy_for(const uint8_t uuid[16], uint32_t *hint);
/* True if the daemon's heartbeat is recent at now_ns; records the result in gl_self.daemon.away.  False without a
 * policy. */
bool gl_policy_fresh(uint64_t now_ns);
/* The connection to the daemon broke: the daemon counts as away until its next heartbeat.  Wakes the waiting
 * threads. */
void gl_policy_lost(void);

/* ---- agent.c ---- */

/* Starts the thread, once.  Without pthreads there is no thread, and so there are no commands. */
void gl_agent_start(void);

#pragma GCC visibility pop

#endif
