/* SPDX-License-Identifier: Apache-2.0
 *
 * Registers with the daemon, if there is to be one (address.c).  Otherwise only the environment counts.
 *
 *   the daemon does not answer    tried again for GPULIMIT_WAIT seconds; then GPULIMIT_ON_LOSS decides: closed (the
 *                                 process gets no GPU) or open (the environment's quota alone)
 *   its answer makes no sense     GPULIMIT_ON_LOSS decides at once
 *   it refuses the process        final; but where GPULIMIT_WAIT is set and the reason is what other tenants hold now, tried
 *                                 again for so long
 *
 * If the outcome is not final, the process tries once more, briefly, at its next CUDA call (process.c).
 *
 * A process that only calls NVML registers as a view: one short try, so that nvidia-smi never hangs; without an answer
 * it sees the whole card, and a later CUDA call registers it in full.  A view has no thread.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define REFUSED "every CUDA call of this process is refused"
enum { DEFAULT_WAIT_S = 10, MAX_WAIT_S = 86400, MAX_WAIT_RESTARTS = 3, RETRY_NS = 50000000, RETRY_REFUSAL_NS = 500000000,
       CONFLICT = 409 };

/* ---- settings ---- */

/* Seconds with up to nine decimals. */
static bool parse_seconds(const char *text, uint64_t *ns)
{
	uint64_t whole = 0, part = 0, unit = GL_SECOND_NS;
	const char *p = text;
	for (; *p >= '0' && *p <= '9' && whole <= MAX_WAIT_S; p++)
		whole = whole * 10 + (uint64_t)(*p - '0');
	bool digits = p > text;
	if (*p == '.')
		for (p++; *p >= '0' && *p <= '9' && unit > 1; p++) {
			unit /= 10;
			part += (uint64_t)(*p - '0') * unit;
		}
	*ns = whole * GL_SECOND_NS + part;
	return digits && !*p && whole <= MAX_WAIT_S;
}

static bool read_policy_on_loss(struct gl_daemon *d)
{
	const char *wait = getenv("GPULIMIT_WAIT"), *loss = d->address.by_node ? NULL : getenv("GPULIMIT_ON_LOSS");
	d->wait_ns = DEFAULT_WAIT_S * GL_SECOND_NS;
	d->waits_for_others = wait != NULL;
	d->closed = !loss || strcmp(loss, "open") != 0;
	if (wait && !parse_seconds(wait, &d->wait_ns)) {
		gl_log(GL_ERROR, "GPULIMIT_WAIT: \"%.40s\" is not a number of seconds from 0 to 86400; " REFUSED, wait);
		return false;
	}
	if (loss && d->closed && strcmp(loss, "closed") != 0) {
		gl_log(GL_ERROR, "GPULIMIT_ON_LOSS: \"%.40s\" is neither open nor closed; " REFUSED, loss);
		return false;
	}
	return true;
}

/* ---- the request ---- */

static void member_name(struct gl_out *out, const char *name)
{
	if (out->text[out->length - 1] != '{')
		gl_out_text(out, ",");
	gl_out_json(out, name);
	gl_out_text(out, ":");
}

static void member(struct gl_out *out, const char *name, const char *value)
{
	if (!value)
		return;
	member_name(out, name);
	gl_out_json(out, value);
}

static void member_number(struct gl_out *out, const char *name, uint64_t value)
{
	member_name(out, name);
	gl_out_number(out, value);
}

/* The quota's parser looks up each variable that it knows, and so lists them for the request. */
static const char *note_variable(const char *name, void *out)
{
	const char *value = getenv(name);
	member(out, name, value);
	return value;
}

static bool write_body(struct gl_daemon *d)
{
	struct gl_identity id = gl_identity_read();
	struct gl_quota scratch;
	struct gl_out out;
	gl_out_begin(&out, d->body, sizeof d->body);
	gl_out_text(&out, "{");
	member_number(&out, "version", GL_LAYOUT_VERSION);
	member_number(&out, "pid", gl_self.pid);
	member_number(&out, "start_ticks", id.start_ticks);
	member(&out, "name", id.name);
	member(&out, "tenant", gl_self.quota.tenant);
	member(&out, "pod_name", getenv("POD_NAME"));
	member(&out, "pod_namespace", getenv("POD_NAMESPACE"));
	gl_out_text(&out, ",\"files\":true");
	if (d->view)
		gl_out_text(&out, ",\"view\":true");
	gl_out_text(&out, ",\"environment\":{");
	(void)gl_quota_read(&scratch, note_variable, &out);
	gl_out_text(&out, "}}");
	if (out.full)
		gl_log(GL_ERROR, "the quota's variables are too long for the daemon; " REFUSED);
	return !out.full;
}

/* ---- the answer ---- */

static bool begins(const char *text, const char *prefix, const char *rest)
{
	size_t n = strlen(prefix);
	return strncmp(text, prefix, n) == 0 && strcmp(text + n, rest) == 0;
}

/* The reason why a registration's answer is unusable; NULL: it is usable. */
static const char *fault_of(const struct gl_answer *a)
{
	if (a->status != 200)
		return "an unexpected status";
	if (!*a->worker || !*a->tenant || !a->host_pid)
		return "headers are missing";
	if (!begins(a->usage, GL_USAGE_PREFIX, a->tenant) || !begins(a->policy, GL_POLICY_PREFIX, a->tenant))
		return "the segments are not the tenant's";
	return NULL;
}

static bool is_refusal(const struct gl_answer *a)
{
	return a->status == 403 || a->status == 409 || a->status == 422;
}

/* True if there was no valid answer, or the daemon is not ready yet: worth another try. */
static bool is_passing(int r, const struct gl_answer *a)
{
	return r ? r != -EPROTO : a->status >= 500;
}

/* True if the daemon refuses because of what other tenants hold now, and this process is to wait until they end. */
static bool is_waited_for(int r, const struct gl_answer *a)
{
	const struct gl_daemon *d = &gl_self.daemon;
	return r == 0 && a->status == CONFLICT && d->waits_for_others && !d->view;
}

static int ask(uint64_t deadline_ns, struct gl_answer *answer, struct gl_files *files)
{
	struct gl_daemon *d = &gl_self.daemon;
	char request[sizeof d->body + 1024];
	struct gl_out out;
	gl_out_begin(&out, request, sizeof request);
	gl_http_request(&out, "POST", "/v1/workers", d->address.token, d->body);
	return gl_http_ask(&d->address, request, out.length, deadline_ns, NULL, answer, files);
}

static int take_in(const struct gl_answer *a, struct gl_files *files)
{
	struct gl_daemon *d = &gl_self.daemon;
	int r = gl_policy_map(files->fd[GL_FILE_POLICY], a->policy, a->tenant);
	if (r)
		return r;
	d->usage_fd = files->fd[GL_FILE_USAGE];
	files->fd[GL_FILE_USAGE] = -1;
	gl_loan_file_keep(files->fd[GL_FILE_STATE]);
	files->fd[GL_FILE_STATE] = -1;
	memcpy(d->tenant, a->tenant, sizeof d->tenant);
	memcpy(d->worker, a->worker, sizeof d->worker);
	d->proposed = strcmp(a->source, "environment") == 0;
	d->host_pid = a->host_pid;
	d->command = 0;
	gl_store_release(&d->registered, 1u);
	return 0;
}

static int lost(const char *what, const char *why)
{
	struct gl_daemon *d = &gl_self.daemon;
	if (d->view)
		gl_log(GL_WARN, "the daemon at %s %s: %s; NVML shows the card as it is", d->address.text, what, why);
	else if (d->closed)
		gl_log(GL_ERROR, "the daemon at %s %s: %s; " REFUSED, d->address.text, what, why);
	else
		gl_log(GL_WARN, "the daemon at %s %s: %s; going on with the environment's quota alone", d->address.text, what, why);
	d->lost = 1;
	return d->view || d->closed ? GL_DAEMON_WRONG : GL_DAEMON_NONE;
}

static const char *cause(int error)
{
	return error == -ETIMEDOUT ? "it is silent" : error == -ECONNRESET ? "it hung up" : strerror(-error);
}

/* Turns the result of a request into the outcome of the registration. */
static int conclude(int r, const struct gl_answer *a, struct gl_files *files)
{
	char text[48];
	struct gl_out out;
	gl_out_begin(&out, text, sizeof text);
	gl_out_text(&out, "status ");
	gl_out_number(&out, (uint64_t)a->status);
	if (r == 0 && is_refusal(a)) {
		gl_log(gl_self.daemon.view ? GL_WARN : GL_ERROR, "the daemon refuses this process: %s; " REFUSED,
		       *a->error ? a->error : text);
		return GL_DAEMON_WRONG;
	}
	if (r == -EPROTO)
		return lost("gives a wrong answer", a->wrong);
	if (r)
		return lost("does not answer", cause(r));
	const char *fault = fault_of(a);
	if (fault)
		return lost(a->status >= 500 ? "cannot take this process in now" : "gives a wrong answer",
			    *a->error ? a->error : a->status != 200 ? text : fault);
	r = take_in(a, files);
	if (r)
		return lost("names a policy that cannot be used",
			    r == -EPROTO ? "it is damaged or of another version" : strerror(-r));
	gl_log(GL_INFO, "registered as worker %s of tenant %s", a->worker, a->tenant);
	return GL_DAEMON_THERE;
}

/* Restarts the waiting time if the daemon hung up, since another daemon is about to replace it, and if this process was
 * stopped beyond the deadline.  Returns false after too many restarts. */
static bool begins_again(int r, uint64_t *deadline_ns, uint32_t *times)
{
	uint64_t now = gl_now_ns();
	bool stopped = r == -ETIMEDOUT && now > *deadline_ns + GL_SECOND_NS / 2;
	if ((r != -ECONNRESET && r != -EPIPE && !stopped) || (*times)++ >= MAX_WAIT_RESTARTS)
		return false;
	if (now + gl_self.daemon.wait_ns > *deadline_ns)
		*deadline_ns = now + gl_self.daemon.wait_ns;
	return true;
}

int gl_register(bool view)
{
	struct gl_daemon *d = &gl_self.daemon;
	struct gl_answer answer;
	struct gl_files files = {GL_FILES, {-1, -1, -1}};
	*d = (struct gl_daemon){.view = view, .usage_fd = -1};
	int there = gl_address_find(&d->address);
	if (there != GL_DAEMON_THERE)
		return there;
	if (!read_policy_on_loss(d) || !write_body(d))
		return GL_DAEMON_WRONG;
	if (view || gl_self.lost_at_ns)
		d->wait_ns = 0;
	uint64_t begin = gl_now_ns(), deadline = begin + d->wait_ns;
	uint32_t beginnings = 0;
	bool told = false;
	for (;;) {
		/* Even with GPULIMIT_WAIT=0, a running daemon gets the time to answer. */
		uint64_t least = begin + GL_SECOND_NS, until = deadline > least ? deadline : least;
		int r = ask(until, &answer, &files);
		if (begins_again(r, &until, &beginnings))
			deadline = until;
		bool waited_for = is_waited_for(r, &answer);
		long nap_ns = waited_for ? RETRY_REFUSAL_NS : RETRY_NS;
		if ((!is_passing(r, &answer) && !waited_for) || gl_now_ns() + (uint64_t)nap_ns >= deadline) {
			int outcome = conclude(r, &answer, &files);
			gl_files_close(&files);
			return outcome;
		}
		if (waited_for && !told)
			gl_log(GL_WARN, "waits for its start: %s", answer.error);
		told = told || waited_for;
		gl_files_close(&files);
		struct timespec nap = {0, nap_ns};
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
	}
}

static int take_back(const struct gl_answer *a, struct gl_files *files)
{
	struct gl_daemon *d = &gl_self.daemon;
	if (is_refusal(a) || fault_of(a))
		return a->status >= 500 ? -EAGAIN : -EACCES;
	/* A running process cannot change its tenant: its memory is in the account of the tenant that it joined. */
	if (strcmp(a->tenant, d->tenant) != 0)
		return -EACCES;
	bool proposed = d->proposed;
	int r = take_in(a, files);
	d->proposed = proposed;
	return r;
}

int gl_register_again(uint64_t deadline_ns)
{
	struct gl_answer answer;
	struct gl_files files = {GL_FILE_POLICY + 1, {-1, -1, -1}};
	int r = ask(deadline_ns, &answer, &files);
	if (r == 0)
		r = take_back(&answer, &files);
	gl_files_close(&files);
	return r;
}

int gl_register_whole(void)
{
	struct gl_daemon *d = &gl_self.daemon;
	d->view = 0;
	if (!write_body(d))
		return -EACCES;
	int r = gl_register_again(gl_now_ns() + GL_SECOND_NS);
	if (r == -EACCES)
		gl_log(GL_ERROR, "the daemon refuses this process; " REFUSED);
	return r;
}
