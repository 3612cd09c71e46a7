/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of error codes.
 */
#include "sim.h"

static const char *error_name(CUresult error)
{
	switch (error) {
#define SIM_ERROR(name, value) \
	case value: return #name;
#include "errors.def"
#undef SIM_ERROR
	default: return NULL;
	}
}

SIM_EXPORT CUresult cuGetErrorName(CUresult error, const char **text)
{
	SIM_ENTER_EARLY(cuGetErrorName);
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = error_name(error);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
	static const struct { CUresult error; const char *text; } known[] = {
		{ 0, "no error" }, { 1, "invalid argument" }, { 2, "out of memory" }, { 3, "initialization error" },
		{ 100, "no CUDA-capable device is detected" }, { 101, "invalid device ordinal" }, { 201, "invalid device context" },
		{ 400, "invalid resource handle" }, { 500, "named symbol not found" }, { 600, "device not ready" },
		{ 801, "operation not supported" }, { 900, "operation not permitted when stream is capturing" },
		{ 901, "operation failed due to a previous error during capture" }, { 999, "unknown error" },
	};
	SIM_ENTER_EARLY(cuGetErrorString);

	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = error_name(error);
	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].error == error)
			*text = known[i].text;
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
