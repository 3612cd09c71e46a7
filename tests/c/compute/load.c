/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps simulated GPUs busy as told, and says what it saw.
 *
 * Usage: load KEY=VALUE...
 *   seconds=3 kernel=1000000 (ns) threads=1 streams=1 (a thread's) own=0 (1: each thread's per-thread default stream)
 *   contexts=1 (threads in turn) devices=1 (likewise) graph=0 (kernels in each) burst=0 period=0 (us of work in each period)
 *   firsts=0 first=0 (so many launches take so many ns instead)
 *   launches=0 (ends after so many) timer=0 (us between SIGALRMs)
 * Prints: launches N blocked_ms X signals N late_bursts N
 */
#include <errno.h>
#include <pthread.h>
#include <sys/time.h>

#include "any_memory.h"

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out) { ret; }\n";
static double seconds = 3;
static uint64_t kernel_ns = 1000000, first_ns, limit_launches, burst_us, period_us;
static int threads = 1, streams = 1, own, contexts = 1, devices = 1, graph_nodes, timer_us, firsts;
static CUcontext context[16];
static CUfunction function[16];
static uint64_t launches, longest_ns, signals, late, errno_lost;
static volatile bool stop;

static void on_alarm(int number)
{
	(void)number;
	signals++;
}

static CUresult launch(CUfunction f, CUstream stream)
{
	bool is_first = __atomic_load_n(&launches, __ATOMIC_RELAXED) < (uint64_t)firsts;
	uint64_t ns = is_first ? first_ns : kernel_ns, out = 0;
	void *params[] = {&ns, &out};
	return own ? cuLaunchKernel_ptsz(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL)
		   : cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static CUgraphExec make_graph(CUfunction f, CUstream stream)
{
	CUgraph graph;
	CUgraphExec exec;
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	for (int i = 0; i < graph_nodes; i++)
		OK(launch(f, stream));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static void one(CUfunction f, CUstream stream, CUgraphExec exec)
{
	uint64_t start = any_now_ns();
	errno = 1234;
	OK(exec ? cuGraphLaunch(exec, stream) : launch(f, stream));
	errno_lost += errno != 1234;
	uint64_t took = any_now_ns() - start, seen = longest_ns;
	while (took > seen && !__atomic_compare_exchange_n(&longest_ns, &seen, took, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	if (__atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED) == limit_launches)
		stop = true;
}

static void pause_until(uint64_t ns)
{
	uint64_t now;
	while (!stop && (now = any_now_ns()) < ns)
		usleep((useconds_t)(ns - now > 10000000 ? 10000 : (ns - now) / 1000 + 1));
}

static void burst(CUfunction f, CUstream stream, uint64_t *next)
{
	uint64_t start = any_now_ns();
	for (uint64_t done = 0; done < burst_us * 1000; done += kernel_ns)
		one(f, stream, NULL);
	OK(cuStreamSynchronize(stream));
	late += any_now_ns() - start > burst_us * 1000 + 8000000;
	*next += period_us * 1000;
	pause_until(*next);
}

static void *work(void *arg)
{
	int number = (int)(uintptr_t)arg, which = number % (contexts * devices);
	CUstream stream[16];
	CUgraphExec exec[16] = {0};
	OK(cuCtxSetCurrent(context[which]));
	for (int i = 0; i < streams; i++) {
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
		if (graph_nodes)
			exec[i] = make_graph(function[which], stream[i]);
	}
	uint64_t next = any_now_ns();
	for (int i = 0; !stop && !failures; i++) {
		if (burst_us)
			burst(function[which], stream[0], &next);
		else
			one(function[which], stream[i % streams], exec[i % streams]);
	}
	return NULL;
}

static void option(const char *text)
{
	const char *value = strchr(text, '=');
	static const struct {
		const char *name;
		int *number;
		uint64_t *large;
	} options[] = {{"kernel", NULL, &kernel_ns}, {"threads", &threads, NULL}, {"streams", &streams, NULL}, {"own", &own, NULL},
		       {"contexts", &contexts, NULL}, {"devices", &devices, NULL}, {"graph", &graph_nodes, NULL},
		       {"burst", NULL, &burst_us}, {"period", NULL, &period_us}, {"launches", NULL, &limit_launches},
		       {"timer", &timer_us, NULL}, {"firsts", &firsts, NULL}, {"first", NULL, &first_ns}};
	if (!strncmp(text, "seconds=", 8)) {
		seconds = atof(value + 1);
		return;
	}
	for (unsigned i = 0; i < sizeof options / sizeof *options; i++)
		if (value && strlen(options[i].name) == (size_t)(value - text) && !strncmp(text, options[i].name, (size_t)(value - text))) {
			if (options[i].number)
				*options[i].number = atoi(value + 1);
			else
				*options[i].large = strtoull(value + 1, NULL, 0);
			return;
		}
	printf("unknown option %s\n", text);
	exit(2);
}

static void set_up(void)
{
	CUmodule module;
	OK(cuInit(0));
	for (int d = 0; d < devices; d++)
		for (int c = 0; c < contexts; c++) {
			int at = d * contexts + c;
			OK(cuCtxCreate_v2(&context[at], 0, d));
			OK(cuModuleLoadData(&module, ptx));
			OK(cuModuleGetFunction(&function[at], module, "gpulimit_spin"));
		}
}

int main(int argc, char **argv)
{
	pthread_t thread[64];
	struct sigaction handler = {.sa_handler = on_alarm}; /* no SA_RESTART */
	struct itimerval timer;
	for (int i = 1; i < argc; i++)
		option(argv[i]);
	set_up();
	puts("ready");
	fflush(stdout);
	if (timer_us) {
		timer = (struct itimerval){{0, timer_us}, {0, timer_us}};
		sigaction(SIGALRM, &handler, NULL);
		setitimer(ITIMER_REAL, &timer, NULL);
	}
	uint64_t end = any_now_ns() + (uint64_t)(seconds * 1e9);
	for (int i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i);
	pause_until(end);
	stop = true;
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < contexts * devices; i++) {
		OK(cuCtxSetCurrent(context[i]));
		OK(cuCtxSynchronize());
	}
	if (errno_lost)
		FAIL("errno was lost in %llu launches", (unsigned long long)errno_lost);
	printf("launches %llu blocked_ms %.1f signals %llu late_bursts %llu\n", (unsigned long long)launches,
	       (double)longest_ns / 1e6, (unsigned long long)signals, (unsigned long long)late);
	return failures != 0;
}
