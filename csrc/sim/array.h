/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: memory of a layout of the card's own.
 */
#ifndef GL_SIM_ARRAY_H
#define GL_SIM_ARRAY_H

#include "sim.h"

struct CUarray_st {
	CUcontext ctx;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	uint64_t addr, bytes, mapped_bytes;
	size_t pitch, height; /* of a row in bytes; rows of a slice */
	CUmipmappedArray mipmap; /* a level of it, else NULL */
};
void sim_array_drop(void *array);  /* for the end of a context */
void sim_mipmap_drop(void *mipmap);

#endif
