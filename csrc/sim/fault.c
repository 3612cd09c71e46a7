/* SPDX-License-Identifier: Apache-2.0
 *
 * Injected faults.  GPULIMIT_SIM_FAULTS is a list of rules, one per exported function:
 *
 *   cuMemAlloc_v2:fail=2:after=3:count=1,nvmlDeviceGetMemoryInfo:delay_ms=100,cuMemFree_v2:kill=before
 *
 * after=N lets N calls pass first, count=K ends the rule after K calls (default: never), fail=CODE
 * answers CODE without doing anything, delay_ms=N sleeps first, hang never returns, kill=before|after
 * kills the process with SIGKILL around the call.  `*` as the name means every function.  gpu=INDEX, for NVML's
 * calls about a card: those about this card alone.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

struct sim_fault {
	char name[64];
	long fail, after, count, delay_ms, gpu;
	bool has_fail, hang, kill_before, kill_after;
	atomic_long calls;
};

enum { MAX_FAULTS = 64 };
static struct sim_fault faults[MAX_FAULTS];
static int fault_count;
static pthread_once_t parsed = PTHREAD_ONCE_INIT;

static bool set_option(struct sim_fault *f, char *option)
{
	char *value = strchr(option, '=');
	char *end = NULL;

	if (value)
		*value++ = 0;
	if (!strcmp(option, "hang"))
		return f->hang = true;
	if (!value)
		return false;
	if (!strcmp(option, "kill")) {
		f->kill_before = !strcmp(value, "before");
		f->kill_after = !strcmp(value, "after");
		return f->kill_before || f->kill_after;
	}
	long number = strtol(value, &end, 10);
	if (*end)
		return false;
	if (!strcmp(option, "fail")) {
		f->has_fail = true;
		f->fail = number;
	} else if (!strcmp(option, "after")) {
		f->after = number;
	} else if (!strcmp(option, "count")) {
		f->count = number;
	} else if (!strcmp(option, "delay_ms")) {
		f->delay_ms = number;
	} else if (!strcmp(option, "gpu")) {
		f->gpu = number;
	} else {
		return false;
	}
	return true;
}

static void parse_rule(char *rule)
{
	char *save = NULL, *part = strtok_r(rule, ":", &save);

	if (!part || fault_count == MAX_FAULTS || strlen(part) >= sizeof(faults[0].name))
		return;
	struct sim_fault *f = &faults[fault_count++];
	strcpy(f->name, part);
	f->count = f->gpu = -1;
	while ((part = strtok_r(NULL, ":", &save)))
		if (!set_option(f, part))
			sim_complain("GPULIMIT_SIM_FAULTS: %s: unknown option %s", f->name, part);
}

static void parse(void)
{
	const char *text = getenv("GPULIMIT_SIM_FAULTS");
	char *copy = text ? strdup(text) : NULL, *save = NULL;

	if (!copy)
		return;
	for (char *rule = strtok_r(copy, ",", &save); rule; rule = strtok_r(NULL, ",", &save))
		parse_rule(rule);
	free(copy);
}

static void look_up(struct sim_site *site)
{
	struct sim_fault *found = NULL;

	pthread_once(&parsed, parse);
	for (int i = 0; i < fault_count && !found; i++)
		if (!strcmp(faults[i].name, site->name) || !strcmp(faults[i].name, "*"))
			found = &faults[i];
	__atomic_store_n(&site->fault, found, __ATOMIC_RELAXED);
	__atomic_store_n(&site->known, 1, __ATOMIC_RELEASE);
}

static void sleep_ms(long ms)
{
	struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	while (nanosleep(&ts, &ts))
		;
}

static _Thread_local long card = -1; /* of the call that follows */

void sim_fault_about(long gpu)
{
	card = gpu;
}

/* Whether this call is one the rule is about. */
static bool strikes(struct sim_fault *f)
{
	long about = card;

	card = -1;
	if (f->gpu >= 0 && f->gpu != about)
		return false;
	long call = atomic_fetch_add(&f->calls, 1);

	return call >= f->after && (f->count < 0 || call < f->after + f->count);
}

int sim_fault_enter(struct sim_site *site, int *code)
{
	if (!__atomic_load_n(&site->known, __ATOMIC_ACQUIRE))
		look_up(site);
	struct sim_fault *f = __atomic_load_n(&site->fault, __ATOMIC_RELAXED);
	if (!f)
		card = -1;
	if (!f || !strikes(f))
		return 0;
	if (f->delay_ms)
		sleep_ms(f->delay_ms);
	while (f->hang)
		pause();
	if (f->kill_before)
		kill(getpid(), SIGKILL);
	*code = (int)f->fail;
	return f->has_fail;
}

void sim_fault_leave(struct sim_site *site)
{
	struct sim_fault *f = __atomic_load_n(&site->fault, __ATOMIC_RELAXED);

	if (!f || !f->kill_after)
		return;
	long call = atomic_load(&f->calls) - 1;
	if (call >= f->after && (f->count < 0 || call < f->after + f->count))
		kill(getpid(), SIGKILL);
}
