/* SPDX-License-Identifier: Apache-2.0
 *
 * The one thread that the library has in a process, and only if the process is registered: it holds a long poll for
 * commands at the daemon and registers again when a restarted daemon does not know the process.
 *
 * The thread must not disturb the program.  All signals are blocked in it.  It waits for no lock of the shim.  It calls
 * neither NVML nor getenv, and CUDA only to read events of work that the program has not come back to (time/idle.c), and
 * to trim pools for another process of the tenant (memory/pool_siblings.c).  It
 * ends once the program's own threads have ended.  After fork it only exists in the parent: gl_self is wiped, and the child
 * starts its own.  exec and exit end it at any point.
 *
 * Commands carry no state.  Launches read limits and suspension from the policy, so the answers to suspend, resume, refresh
 * and drain only tell the daemon that this process follows the policy.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "shim.h"

enum { POLL_S = 25, ANSWER_S = 5, STACK = 256 * 1024 };

static void nap(uint64_t ns)
{
	struct timespec t = gl_timespec(ns);
	(void)gl_syscall(SYS_nanosleep, &t, NULL);
}

/* True if all threads of the program have ended: its first one has called pthread_exit, and only this one is left. */
static bool alone(void)
{
	char text[512];
	int fd = gl_open("/proc/self/stat", O_RDONLY, 0);
	long n = fd < 0 ? fd : gl_syscall(SYS_read, fd, text, sizeof text - 1);
	if (fd >= 0)
		gl_close(fd);
	text[n > 0 ? n : 0] = 0;
	const char *p = strrchr(text, ')'); /* the process name may contain any character */
	if (!p || p[1] != ' ' || p[2] != 'Z')
		return false;
	for (int field = 2; *p && field < 20; p++)
		field += *p == ' ';
	return p[0] == '2' && p[1] == ' ';
}

/* Writes the limits in force to the usage segment, for tools that read it without the daemon. */
static void show_limits(void)
{
	for (uint32_t i = 0, hint = 0; i < GL_MAX_DEVICES; i++) {
		struct gl_device *d = &gl_self.usage->device[i];
		if (gl_load_acquire(&d->ready) != 1)
			continue;
		const struct gl_policy_device *p = gl_policy_for(d->uuid, &hint);
		uint64_t memory = gl_load_relaxed(&p->memory_limit_bytes), card = gl_load_relaxed(&d->card_bytes);
		uint32_t percent = gl_load_relaxed(&p->compute_limit_percent);
		memory = memory < card ? memory : card;
		if (gl_load_relaxed(&d->memory_limit_bytes) != memory)
			gl_store_relaxed(&d->memory_limit_bytes, memory);
		if (percent >= 1 && percent <= 100 && gl_load_relaxed(&d->compute_limit_percent) != percent)
			gl_store_relaxed(&d->compute_limit_percent, percent);
	}
}

static bool tick(void)
{
	void (*look)(void) = gl_load_acquire(&gl_self.look);
	(void)gl_policy_fresh(gl_now_ns());
	show_limits();
	if (look)
		look();
	void (*give)(void) = gl_load_acquire(&gl_self.give);
	if (give && gl_load_relaxed(&gl_self.own->asked))
		give();
	return !alone();
}

static void worker_path(struct gl_out *out, char *text, size_t size, const char *what)
{
	gl_out_begin(out, text, size);
	gl_out_text(out, "/v1/workers/");
	gl_out_text(out, gl_self.daemon.worker);
	gl_out_text(out, what);
}

static int ask(const char *method, const char *path, const char *body, unsigned int seconds, struct gl_answer *answer)
{
	char request[1024];
	struct gl_out out;
	gl_out_begin(&out, request, sizeof request);
	gl_http_request(&out, method, path, gl_self.daemon.address.token, body);
	uint64_t deadline_ns = gl_now_ns() + seconds * GL_SECOND_NS;
	return gl_http_ask(&gl_self.daemon.address, request, out.length, deadline_ns, tick, answer, NULL);
}

static int next_command(struct gl_answer *answer)
{
	char path[192];
	struct gl_out out;
	worker_path(&out, path, sizeof path, "/commands?after=");
	gl_out_number(&out, gl_self.daemon.command);
	gl_out_text(&out, "&wait=");
	gl_out_number(&out, POLL_S);
	return ask("GET", path, NULL, POLL_S + ANSWER_S, answer);
}

static const char *obey(const char *command)
{
	static const char followed[][8] = {"suspend", "resume", "refresh", "drain"};
	for (size_t i = 0; i < sizeof followed / sizeof *followed; i++)
		if (strncmp(command, followed[i], sizeof *followed) == 0)
			return NULL;
	if (strcmp(command, "checkpoint") == 0 || strcmp(command, "restore") == 0)
		return "not supported";
	return "unknown command";
}

static int report(uint64_t number, const char *failure, struct gl_answer *answer)
{
	char path[128], body[160];
	struct gl_out out;
	gl_out_begin(&out, body, sizeof body);
	gl_out_text(&out, "{\"number\":");
	gl_out_number(&out, number);
	gl_out_text(&out, failure ? ",\"ok\":false,\"message\":" : ",\"ok\":true,\"message\":");
	gl_out_json(&out, failure ? failure : "");
	gl_out_text(&out, "}");
	worker_path(&out, path, sizeof path, "/results");
	return ask("POST", path, body, ANSWER_S, answer);
}

/* One round: a command, none, or an error.  Returns how long to wait before the next. */
static uint64_t step(struct gl_answer *answer)
{
	struct gl_daemon *d = &gl_self.daemon;
	uint64_t begin = gl_now_ns();
	int r = next_command(answer);
	if (r == 0 && answer->status == 404) {
		r = gl_register_again(gl_now_ns() + ANSWER_S * GL_SECOND_NS);
		/* As a number, because strerror takes libc's locks. */
		gl_log(r ? GL_WARN : GL_INFO, r ? "the daemon does not take this process back (%d); its last limits hold"
						: "registered again (%d)", -r);
		return r == 0 ? 0 : r == -EACCES ? 5 * GL_SECOND_NS : GL_SECOND_NS / 2;
	}
	if (r) { /* the daemon has ended or restarts; the kernel reports it long before the heartbeat is old */
		gl_policy_lost();
		return GL_SECOND_NS / 4;
	}
	if (answer->status == 200 && *answer->command && answer->command_number > d->command) {
		uint64_t number = answer->command_number;
		const char *failure = obey(answer->command);
		gl_log(GL_INFO, "command %llu, %s: %s", (unsigned long long)number, answer->command, failure ? failure : "done");
		(void)report(number, failure, answer);
		d->command = number;
		return 0;
	}
	/* An empty answer at once, or an unusable one: the daemon has a problem, so the thread waits before the next
	 * request. */
	return answer->status == 204 && gl_now_ns() - begin > GL_SECOND_NS / 2 ? 0 : GL_SECOND_NS / 2;
}

static void *agent(void *unused)
{
	struct gl_answer answer;
	(void)unused;
	(void)gl_syscall(SYS_prctl, PR_SET_NAME, "gpulimit", 0, 0, 0);
	while (tick())
		nap(step(&answer));
	return NULL;
}

/* ---- starting ---- */

struct threads {
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	int (*attr_init)(pthread_attr_t *);
	int (*set_detached)(pthread_attr_t *, int);
	int (*set_stack)(pthread_attr_t *, size_t);
};

/* Looked up at run time, since their versions differ between libcs.  The program's libc has them, or it could not load
 * CUDA. */
static bool find_threads(struct threads *t)
{
	t->create = (__typeof__(t->create))gl_elf_libc_symbol("pthread_create");
	t->attr_init = (__typeof__(t->attr_init))gl_elf_libc_symbol("pthread_attr_init");
	t->set_detached = (__typeof__(t->set_detached))gl_elf_libc_symbol("pthread_attr_setdetachstate");
	t->set_stack = (__typeof__(t->set_stack))gl_elf_libc_symbol("pthread_attr_setstacksize");
	return t->create && t->attr_init && t->set_detached && t->set_stack;
}

static int create(const struct threads *t)
{
	pthread_attr_t attr;
	pthread_t thread;
	if (t->attr_init(&attr) || t->set_detached(&attr, PTHREAD_CREATE_DETACHED) || t->set_stack(&attr, STACK))
		return EINVAL;
	int r = t->create(&thread, &attr, agent, NULL);
	if (r == EINVAL) {
		/* The program's thread-local data does not fit: uses the default stack size. */
		(void)t->attr_init(&attr);
		(void)t->set_detached(&attr, PTHREAD_CREATE_DETACHED);
		r = t->create(&thread, &attr, agent, NULL);
	}
	return r;
}

void gl_agent_start(void)
{
	struct threads threads;
	sigset_t all, before;
	int kept = errno;
	if (gl_self.daemon.agent)
		return;
	gl_self.daemon.agent = 1;
	/* libc leaves out the signals that it needs itself, for setuid and for cancelling. */
	sigfillset(&all);
	bool found = find_threads(&threads);
	int r = found ? sigprocmask(SIG_SETMASK, &all, &before) : ENOSYS;
	if (r == 0) {
		r = create(&threads);
		(void)sigprocmask(SIG_SETMASK, &before, NULL);
	}
	gl_log(r ? GL_WARN : GL_DEBUG, "thread for the daemon's commands: %s", r ? "it cannot be started" : "started");
	errno = kept;
}
