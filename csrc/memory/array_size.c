/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of an array by its description.  The driver adds alignment, which overhead.c sees.
 */
#include "memory/array_size.h"

/* Bits of one element of one channel; 0: the format fixes the channels too. */
static unsigned int bits_per_channel(int format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8: case CU_AD_FORMAT_SIGNED_INT8:
		return 8;
	case CU_AD_FORMAT_UNSIGNED_INT16: case CU_AD_FORMAT_SIGNED_INT16: case CU_AD_FORMAT_HALF:
		return 16;
	case CU_AD_FORMAT_UNSIGNED_INT32: case CU_AD_FORMAT_SIGNED_INT32: case CU_AD_FORMAT_FLOAT:
		return 32;
	default:
		return 0;
	}
}

/* Bits of one pixel where the format fixes the channels: normalized, block-compressed (the average over a block of
 * 4 x 4) and video formats (the planes together).  0: not known. */
static unsigned int bits_per_pixel(int format)
{
	switch (format) {
	case CU_AD_FORMAT_BC1_UNORM: case CU_AD_FORMAT_BC1_UNORM_SRGB:
	case CU_AD_FORMAT_BC4_UNORM: case CU_AD_FORMAT_BC4_SNORM:
		return 4;
	case CU_AD_FORMAT_BC2_UNORM: case CU_AD_FORMAT_BC2_UNORM_SRGB:
	case CU_AD_FORMAT_BC3_UNORM: case CU_AD_FORMAT_BC3_UNORM_SRGB:
	case CU_AD_FORMAT_BC5_UNORM: case CU_AD_FORMAT_BC5_SNORM:
	case CU_AD_FORMAT_BC6H_UF16: case CU_AD_FORMAT_BC6H_SF16:
	case CU_AD_FORMAT_BC7_UNORM: case CU_AD_FORMAT_BC7_UNORM_SRGB:
	case CU_AD_FORMAT_UNORM_INT8X1: case CU_AD_FORMAT_SNORM_INT8X1:
		return 8;
	case CU_AD_FORMAT_NV12: case CU_AD_FORMAT_UINT8_SEMIPLANAR_420: case CU_AD_FORMAT_UINT8_PLANAR_420:
		return 12;
	case CU_AD_FORMAT_NV16: case CU_AD_FORMAT_YUY2: case CU_AD_FORMAT_UINT8_PACKED_422:
	case CU_AD_FORMAT_UINT8_SEMIPLANAR_422: case CU_AD_FORMAT_UINT8_PLANAR_422:
	case CU_AD_FORMAT_UNORM_INT8X2: case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT16X1: case CU_AD_FORMAT_SNORM_INT16X1:
		return 16;
	case CU_AD_FORMAT_P010: case CU_AD_FORMAT_P016:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_420: case CU_AD_FORMAT_UINT16_PLANAR_420:
	case CU_AD_FORMAT_UINT8_SEMIPLANAR_444: case CU_AD_FORMAT_UINT8_PLANAR_444:
	case CU_AD_FORMAT_Y444_PLANAR8: case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
		return 24;
	case CU_AD_FORMAT_P210: case CU_AD_FORMAT_P216: case CU_AD_FORMAT_Y210: case CU_AD_FORMAT_Y216:
	case CU_AD_FORMAT_AYUV: case CU_AD_FORMAT_Y410: case CU_AD_FORMAT_UNORM_INT_101010_2:
	case CU_AD_FORMAT_UINT8_PACKED_444:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_422: case CU_AD_FORMAT_UINT16_PLANAR_422:
	case CU_AD_FORMAT_UNORM_INT8X4: case CU_AD_FORMAT_SNORM_INT8X4:
	case CU_AD_FORMAT_UNORM_INT16X2: case CU_AD_FORMAT_SNORM_INT16X2:
		return 32;
	case CU_AD_FORMAT_Y444_PLANAR10: case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_444: case CU_AD_FORMAT_UINT16_PLANAR_444:
		return 48;
	case CU_AD_FORMAT_Y416: case CU_AD_FORMAT_UNORM_INT16X4: case CU_AD_FORMAT_SNORM_INT16X4:
		return 64;
	default:
		return 0;
	}
}

bool gl_array_format_known(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	if (bits_per_channel(d->Format))
		return d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4;
	return bits_per_pixel(d->Format) != 0;
}

static bool block_compressed(int format)
{
	return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB;
}

static uint64_t extent(uint64_t size, int format)
{
	if (size == 0)
		size = 1;
	return block_compressed(format) && size <= UINT64_MAX - 3 ? (size + 3) & ~UINT64_C(3) : size;
}

uint64_t gl_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	uint64_t bits = bits_per_channel(d->Format), pixels, total;
	if (bits)
		bits *= d->NumChannels ? d->NumChannels : 1;
	else
		bits = bits_per_pixel(d->Format);
	if (!bits) /* a newer format: a guess, corrected by the card's overhead */
		bits = 32 * (uint64_t)(d->NumChannels ? d->NumChannels : 1);
	if (__builtin_mul_overflow(extent(d->Width, d->Format), extent(d->Height, d->Format), &pixels) ||
	    __builtin_mul_overflow(pixels, d->Depth ? d->Depth : 1, &pixels) ||
	    __builtin_mul_overflow(pixels, bits, &total))
		return UINT64_MAX;
	return total / 8 + (total % 8 != 0);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t half(uint64_t size)
{
	return size > 1 ? size / 2 : size;
}

uint64_t gl_mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	CUDA_ARRAY3D_DESCRIPTOR d = *desc;
	bool layers = d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t total = 0;
	if (levels == 0)
		levels = 1; /* as the driver does */
	for (unsigned int level = 0; level < levels; level++) {
		uint64_t bytes = gl_array_bytes(&d);
		if (__builtin_add_overflow(total, bytes, &total))
			return UINT64_MAX;
		if (larger(d.Width, larger(d.Height, layers ? 1 : d.Depth)) <= 1)
			break; /* nor has the driver more levels than it can halve */
		d.Width = half(d.Width), d.Height = half(d.Height);
		if (!layers)
			d.Depth = half(d.Depth);
	}
	return total;
}
