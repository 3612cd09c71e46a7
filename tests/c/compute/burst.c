/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches kernels of known length, waits or not, and ends in one way or another.
 *
 * Usage: burst KEY=VALUE...
 *   kernel=1000000 (ns) count=40 rounds=1 (each followed by the wait) pause=0 (ms after each round)
 *   wait=context|stream|event|poll|none
 *   in=stream (of its own)|default|thread (its per-thread default)|streams (four, in turn)
 *   end=return|exit (from another thread)|fast (_exit)|kill|destroy (of the context)|lose (of the stream, then context)
 *   kinds=1 (so many kernels, in turn)
 * Prints what it has asked for, in ns, before it ends.
 */
#include <pthread.h>
#include <signal.h>

#include "any_memory.h"

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static uint64_t kernel_ns = 1000000, count = 40, rounds = 1, pause_ms, kinds = 1;
static const char *wait_for = "context", *in = "stream", *end = "return";
static CUcontext context;
static CUfunction function;
static CUstream stream[4];

static void option(const char *text)
{
	const char *value = strchr(text, '=') + 1;
	struct {
		const char *name;
		uint64_t *number;
		const char **word;
	} options[] = {{"kernel=", &kernel_ns, NULL}, {"count=", &count, NULL}, {"rounds=", &rounds, NULL},
		       {"pause=", &pause_ms, NULL}, {"kinds=", &kinds, NULL}, {"wait=", NULL, &wait_for},
		       {"in=", NULL, &in}, {"end=", NULL, &end}};
	for (unsigned i = 0; i < sizeof options / sizeof *options; i++)
		if (!strncmp(text, options[i].name, (size_t)(value - text))) {
			if (options[i].number)
				*options[i].number = strtoull(value, NULL, 0);
			else
				*options[i].word = value;
			return;
		}
	printf("unknown option %s\n", text);
	exit(2);
}

static void launch(uint64_t number)
{
	uint64_t out = 0;
	void *params[] = {&kernel_ns, &out};
	unsigned block = 32 * (1 + (unsigned)(number % kinds));
	if (!strcmp(in, "thread"))
		OK(cuLaunchKernel_ptsz(function, 1, 1, 1, block, 1, 1, 0, NULL, params, NULL));
	else
		OK(cuLaunchKernel(function, 1, 1, 1, block, 1, 1, 0,
				  !strcmp(in, "default") ? NULL : stream[!strcmp(in, "streams") ? number % 4 : 0], params, NULL));
}

static void await_all(CUevent event)
{
	CUstream s = !strcmp(in, "default") ? NULL : stream[0];
	if (!strcmp(wait_for, "context"))
		OK(cuCtxSynchronize());
	else if (!strcmp(wait_for, "stream"))
		OK(!strcmp(in, "thread") ? cuStreamSynchronize_ptsz(NULL) : cuStreamSynchronize(s));
	else if (!strcmp(wait_for, "event")) {
		OK(cuEventRecord(event, s));
		OK(cuEventSynchronize(event));
	} else if (!strcmp(wait_for, "poll")) {
		while (cuStreamQuery(s) != CUDA_SUCCESS)
			usleep(200);
	}
}

static void *leave(void *unused)
{
	(void)unused;
	exit(failures != 0);
}

static void finish(void)
{
	pthread_t thread;
	fflush(stdout);
	if (!strcmp(end, "fast"))
		_exit(failures != 0);
	if (!strcmp(end, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(end, "lose"))
		OK(cuStreamDestroy_v2(stream[0]));
	if (!strcmp(end, "lose") || !strcmp(end, "destroy"))
		OK(cuCtxDestroy_v2(context));
	if (!strcmp(end, "exit")) {
		pthread_create(&thread, NULL, leave, NULL);
		pause();
	}
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUevent event;
	for (int i = 1; i < argc; i++)
		option(argv[i]);
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&function, module, "gpulimit_spin"));
	for (int i = 0; i < 4; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, 0));
	for (uint64_t r = 0; r < rounds; r++) {
		for (uint64_t i = 0; i < count; i++)
			launch(i);
		await_all(event);
		usleep((useconds_t)(pause_ms * 1000));
	}
	printf("%llu\n", (unsigned long long)(rounds * count * kernel_ns));
	finish();
	return failures != 0;
}
