/* SPDX-License-Identifier: Apache-2.0
 *
 * Says for each device that CUDA shows: "UUID TOTAL-MIB GRANTED-MIB", GRANTED being what it got in pieces of 64 MiB until
 * it was refused.  Then waits for the end of stdin.  Usage: limits [nvml]: NVML's view instead, "UUID TOTAL-MIB -"
 */
#include "books.h"

static void show_uuid(const unsigned char *bytes)
{
	printf("GPU-");
	for (int i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

static void by_nvml(void)
{
	unsigned int count = 0;
	nvmlDevice_t device;
	nvmlMemory_t memory;
	char uuid[96];
	if (nvmlInit_v2() || nvmlDeviceGetCount_v2(&count))
		FAIL("NVML");
	for (unsigned int i = 0; i < count; i++) {
		if (nvmlDeviceGetHandleByIndex_v2(i, &device) || nvmlDeviceGetUUID(device, uuid, sizeof uuid) ||
		    nvmlDeviceGetMemoryInfo(device, &memory))
			FAIL("NVML device %u", i);
		printf("%s %llu -\n", uuid, memory.total >> 20);
	}
}

static void by_cuda(void)
{
	int count = 0;
	CUresult r = cuInit(0);
	if (r) {
		printf("none %d 0\n", r);
		return;
	}
	OK(cuDeviceGetCount(&count));
	for (int i = 0; i < count; i++) {
		CUdevice dev;
		CUuuid uuid;
		CUcontext context;
		CUdeviceptr p;
		size_t total, free, seen;
		unsigned granted = 0;
		OK(cuDeviceGet(&dev, i));
		OK(cuDeviceGetUuid_v2(&uuid, dev));
		OK(cuDeviceTotalMem_v2(&total, dev));
		if ((r = cuDevicePrimaryCtxRetain(&context, dev)) == CUDA_SUCCESS) {
			OK(cuCtxSetCurrent(context));
			OK(cuMemGetInfo_v2(&free, &seen));
			if (seen != total)
				FAIL("device %d: total is %zu and %zu", i, total, seen);
			while ((r = cuMemAlloc_v2(&p, 64 << 20)) == CUDA_SUCCESS)
				granted += 64;
		}
		if (r != CUDA_ERROR_OUT_OF_MEMORY)
			FAIL("device %d: %d", i, r);
		show_uuid((const unsigned char *)uuid.bytes);
		printf(" %zu %u\n", total >> 20, granted);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "nvml"))
		by_nvml();
	else
		by_cuda();
	puts("end");
	fflush(stdout);
	getchar();
	return failures != 0;
}
