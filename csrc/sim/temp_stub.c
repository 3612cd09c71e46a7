/* SPDX-License-Identifier: Apache-2.0 */
#include "sim.h"
CUresult sim_unsafe(void){return 0;}
CUresult sim_implicit(CUstream s){(void)s;return 0;}
bool sim_capturing(const struct CUstream_st *s){(void)s;return false;}
CUresult sim_capture_kernel(CUstream s,const struct sim_launch*l){(void)s;(void)l;return 900;}
CUresult sim_capture_copy(CUstream s,const struct sim_copy*l){(void)s;(void)l;return 900;}
CUresult sim_capture_memset(CUstream s,const sim_memset_params*l){(void)s;(void)l;return 900;}
CUresult sim_capture_record(CUstream s,CUevent l){(void)s;(void)l;return 900;}
CUresult sim_capture_wait(CUstream s,CUevent l){(void)s;(void)l;return 900;}
void sim_capture_stream_gone(CUstream s){(void)s;}
void sim_pools_settle(uint32_t g){(void)g;}
CUresult sim_pool_free(struct sim_block*b){(void)b;return 1;}
