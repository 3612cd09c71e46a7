/* SPDX-License-Identifier: Apache-2.0
 *
 * What one driver call costs the host, through whatever is preloaded and straight into the driver.
 *
 *     loop launch|malloc|sync      prints "THROUGH DIRECT DIFFERENCE", ns per call
 *
 * Host-bound loops differ by tens of percent from process to process and from second to second, so both ways are
 * measured in one process, batch by batch in turn, each batch starting with an empty queue; the figures are medians
 * over the batches, and the median of the differences of neighbours.  Without a preloaded library both ways are the
 * same and the difference shows the noise.  Links the driver plainly.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../csrc/abi.h"

CUresult cuInit(unsigned int);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);

struct calls {
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
	CUresult (*sync)(void);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*release)(CUdeviceptr);
};

/* An empty launch is about 2 us, so a batch lasts about a millisecond. */
enum { BATCHES = 500, BATCH = 400, SLOW_BATCHES = 200, SLOW_BATCH = 20 };

static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty(){ret;}\n";
static CUfunction empty;

struct wanted {
	const char *name;
	void *found;
};

/* The driver's own symbol, whatever stands before it in the search order. */
static int look_into_driver(struct dl_phdr_info *info, size_t size, void *data)
{
	struct wanted *w = data;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	const uint32_t *hash = NULL;
	(void)size;
	if (!strstr(info->dlpi_name, "libcuda.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
			continue;
		for (const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; d++) {
			if (d->d_tag == DT_SYMTAB)
				symbols = (const void *)d->d_un.d_ptr;
			else if (d->d_tag == DT_STRTAB)
				names = (const void *)d->d_un.d_ptr;
			else if (d->d_tag == DT_GNU_HASH)
				hash = (const void *)d->d_un.d_ptr;
		}
	}
	if (!symbols || !names || !hash)
		return 0;
	const uint32_t *buckets = hash + 4 + hash[2] * (sizeof(ElfW(Addr)) / 4), *chain = buckets + hash[0];
	for (uint32_t b = 0; b < hash[0]; b++) {
		for (uint32_t n = buckets[b]; n >= hash[1]; n++) {
			if (strcmp(names + symbols[n].st_name, w->name) == 0 && symbols[n].st_value)
				w->found = (void *)(info->dlpi_addr + symbols[n].st_value);
			if (chain[n - hash[1]] & 1)
				break;
		}
	}
	return w->found != NULL;
}

static void *of_driver(const char *name)
{
	struct wanted w = {name, NULL};
	dl_iterate_phdr(look_into_driver, &w);
	if (!w.found) {
		fprintf(stderr, "loop: the driver has no %s\n", name);
		exit(1);
	}
	return w.found;
}

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void check(CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "%s: error %d\n", call, result);
		exit(1);
	}
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, by_value);
	return values[count / 2];
}

static double batch_ns(const struct calls *call, char what, int batch)
{
	double start = now_ns();
	for (int j = 0; j < batch; j++) {
		CUdeviceptr p;
		if (what == 'm') {
			check(call->alloc(&p, 1 << 20), "cuMemAlloc");
			check(call->release(p), "cuMemFree");
		} else {
			check(call->launch(empty, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
			if (what == 's')
				check(call->sync(), "cuCtxSynchronize");
		}
	}
	double took = (now_ns() - start) / batch;
	check(call->sync(), "cuCtxSynchronize");
	return took;
}

static void prepare(void)
{
	CUdevice device;
	CUcontext context;
	CUmodule module;
	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
	check(cuModuleGetFunction(&empty, module, "empty"), "cuModuleGetFunction");
}

int main(int argc, char **argv)
{
	static double took[2][BATCHES], difference[BATCHES];
	char what = argc > 1 ? argv[1][0] : 'l';
	int batches = what == 'm' ? SLOW_BATCHES : BATCHES, batch = what == 'm' ? SLOW_BATCH : BATCH;
	struct calls through = {cuLaunchKernel, cuCtxSynchronize, cuMemAlloc_v2, cuMemFree_v2}, direct;
	*(void **)&direct.launch = of_driver("cuLaunchKernel");
	*(void **)&direct.sync = of_driver("cuCtxSynchronize");
	*(void **)&direct.alloc = of_driver("cuMemAlloc_v2");
	*(void **)&direct.release = of_driver("cuMemFree_v2");
	prepare();
	for (int i = -10; i < batches; i++) { /* the first warm up */
		int k = i < 0 ? 0 : i, first = i & 1;
		for (int side = 0; side < 2; side++)
			took[side ^ first][k] = batch_ns((side ^ first) ? &direct : &through, what, batch);
		difference[k] = took[0][k] - took[1][k];
	}
	double apart = median(difference, batches);
	printf("%.1f %.1f %.1f\n", median(took[0], batches), median(took[1], batches), apart);
	return 0;
}
