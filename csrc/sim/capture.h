/* SPDX-License-Identifier: Apache-2.0
 *
 * Captures in progress, shared by capture.c and capture_work.c.
 */
#ifndef GL_SIM_CAPTURE_H
#define GL_SIM_CAPTURE_H

#include "graph.h"

struct sim_capture {
	struct sim_capture *next;
	uint64_t id;
	int mode;
	const void *thread; /* the thread that began the capture */
	CUstream origin;
	CUgraph graph;
	bool invalid;
	bool given; /* true if the program supplied the graph */
	CUstream *streams; /* all streams in the capture, including the origin */
	size_t nstreams;
};
struct sim_capture *sim_capture_find(uint64_t id);
CUresult sim_capture_set_tips(CUstream stream, const CUgraphNode *tips, size_t n);
CUresult sim_capture_join(CUstream stream, struct sim_capture *c);
CUresult sim_capture_info(CUstream handle, CUstream *stream, CUstreamCaptureStatus *status);

#endif
