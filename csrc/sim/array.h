/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: memory in a layout that the card chooses.
 */
#ifndef GL_SIM_ARRAY_H
#define GL_SIM_ARRAY_H

#include "sim.h"

struct CUarray_st {
	CUcontext ctx;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	uint64_t addr, bytes, mapped_bytes;
	size_t pitch, height; /* bytes of a row; rows of a slice */
	CUmipmappedArray mipmap; /* the mipmap of which this is a level, else NULL */
};
void sim_array_drop(void *array);  /* called at the end of a context */
void sim_mipmap_drop(void *mipmap);

#endif
