/* SPDX-License-Identifier: Apache-2.0
 *
 * Profiles describe the machine to simulate.  A profile is a text file of `key = value` lines; keys of the
 * machine come first, then one [gpu] section per GPU model.  Sizes take KiB, MiB, GiB; times ns, us, ms.
 * An unknown key is refused with file and line: a typing error would silently change the machine.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "machine.h"

struct key {
	const char *name;
	size_t offset, text; /* text: size of the field if it holds a string, else 0 */
};

#define NUMBER(name, field) { name, offsetof(struct sim_model, field), 0 }
#define TEXT(name, field) { name, offsetof(struct sim_model, field), sizeof(((struct sim_model *)0)->field) }
static const struct key gpu_keys[] = {
	TEXT("name", name), TEXT("uuid", uuid), NUMBER("count", count),
	NUMBER("memory", total_bytes), NUMBER("reserved", reserved_bytes), NUMBER("context", context_bytes),
	NUMBER("module", module_bytes), NUMBER("lazy", lazy_bytes), NUMBER("pool_step", pool_step_bytes),
	NUMBER("granule", granule_bytes), NUMBER("kernel", kernel_ns), NUMBER("kernel_per_block", kernel_ns_per_block),
	NUMBER("kernel_ns", kernel_ns), NUMBER("kernel_ns_per_block", kernel_ns_per_block),
	NUMBER("event", event_ns), NUMBER("timeslice", timeslice_ns), NUMBER("copy_bytes_per_us", copy_bytes_per_us),
	NUMBER("memory_bytes_per_us", memory_bytes_per_us), NUMBER("cc_major", cc_major), NUMBER("cc_minor", cc_minor),
	NUMBER("sm_count", sm_count), NUMBER("speed", speed), NUMBER("pci_bus", pci_bus), NUMBER("concurrency", concurrency),
	TEXT("mig", mig), TEXT("vgpu", vgpu), TEXT("vgpu_type", vgpu_type), NUMBER("vgpus", vgpus),
	NUMBER("vgpu_memory", vgpu_memory_bytes), NUMBER("vgpu_policy", vgpu_policy), NUMBER("vgpu_arr", vgpu_arr),
	NUMBER("vgpu_timeslice", vgpu_timeslice_ns), NUMBER("vgpu_sm", vgpu_sm), NUMBER("vgpu_overruns", vgpu_overruns),
	NUMBER("vgpu_claim", vgpu_claim), NUMBER("vgpu_accounting", vgpu_accounting),
};

static const struct sim_model defaults = {
	.name = "NVIDIA GPU (simulated)", .count = 1, .total_bytes = 4ull << 30, .context_bytes = 518ull << 20,
	.module_bytes = 2ull << 20, .pool_step_bytes = 32ull << 20, .granule_bytes = 2ull << 20, .kernel_ns = 5000,
	.event_ns = 500, .timeslice_ns = 2000000, .copy_bytes_per_us = 50000, .memory_bytes_per_us = 3000000,
	.cc_major = 9, .cc_minor = 0, .sm_count = 132, .speed = 100, .concurrency = 1,
	.vgpu_type = "GRID A100-10C", .vgpu_memory_bytes = 10ull << 30, .vgpu_policy = 1, .vgpu_timeslice_ns = 2083333, .vgpu_sm = 40,
};

static bool number(const char *text, uint64_t *out)
{
	static const struct { const char *unit; uint64_t factor; } units[] = {
		{ "", 1 }, { "KiB", 1ull << 10 }, { "MiB", 1ull << 20 }, { "GiB", 1ull << 30 }, { "B", 1 },
		{ "ns", 1 }, { "us", 1000 }, { "ms", 1000000 },
	};
	char *end;

	errno = 0;
	unsigned long long value = strtoull(text, &end, 0);
	if (end == text || *text == '-' || errno)
		return false;
	while (*end == ' ')
		end++;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcasecmp(end, units[i].unit))
			continue;
		*out = value * units[i].factor;
		return true;
	}
	return false;
}

static bool set_gpu(struct sim_model *model, const char *key, const char *value)
{
	for (size_t i = 0; i < sizeof(gpu_keys) / sizeof(gpu_keys[0]); i++) {
		const struct key *k = &gpu_keys[i];
		if (strcmp(key, k->name))
			continue;
		if (!k->text)
			return number(value, (uint64_t *)((char *)model + k->offset));
		return snprintf((char *)model + k->offset, k->text, "%s", value) < (int)k->text;
	}
	return false;
}

static bool set_machine(struct sim_machine *m, const char *key, const char *value)
{
	uint64_t n;

	if (!strcmp(key, "driver_version"))
		return snprintf(m->driver_version, sizeof(m->driver_version), "%s", value) < (int)sizeof(m->driver_version);
	if (!strcmp(key, "cuda_version") && number(value, &n)) {
		m->cuda_version = (uint32_t)n;
		return true;
	}
	return false;
}

static char *trim(char *s)
{
	s += strspn(s, " \t");
	for (size_t n = strlen(s); n && strchr(" \t\r\n", s[n - 1]);)
		s[--n] = 0;
	return s;
}

/* Split "key = value"; false if there is no '='. */
static bool split(char *line, char **key, char **value)
{
	char *eq = strchr(line, '=');

	if (!eq)
		return false;
	*eq = 0;
	*key = trim(line);
	*value = trim(eq + 1);
	return true;
}

static bool read_line(struct sim_machine *m, char *line)
{
	char *hash = strchr(line, '#'), *key, *value;

	if (hash)
		*hash = 0;
	line = trim(line);
	if (!*line)
		return true;
	if (!strcmp(line, "[gpu]")) {
		if (m->ngpus == SIM_MAX_GPUS)
			return false;
		m->gpus[m->ngpus++].model = defaults;
		return true;
	}
	if (!split(line, &key, &value))
		return false;
	return m->ngpus ? set_gpu(&m->gpus[m->ngpus - 1].model, key, value) : set_machine(m, key, value);
}

static FILE *open_profile(const char *name, char *path, size_t size)
{
	Dl_info info;

	snprintf(path, size, "%s", name);
	if (strchr(name, '/'))
		return fopen(path, "re");
	if (!dladdr((void *)(uintptr_t)&sim_profile_load, &info) || !info.dli_fname)
		return NULL;
	const char *slash = strrchr(info.dli_fname, '/');
	int dir = slash ? (int)(slash - info.dli_fname) : 1;
	snprintf(path, size, "%.*s/profiles/%s%s", dir, slash ? info.dli_fname : ".", name, strstr(name, ".profile") ? "" : ".profile");
	return fopen(path, "re");
}

static bool read_file(struct sim_machine *m, const char *name)
{
	char path[PATH_MAX], line[512];
	FILE *f = open_profile(name, path, sizeof(path));
	int n = 0;

	if (!f) {
		sim_complain("profile %s: %s", path, strerror(errno));
		return false;
	}
	while (fgets(line, sizeof(line), f)) {
		n++;
		if (!read_line(m, line)) {
			sim_complain("%s:%d: unknown key or bad value: %s", path, n, trim(line));
			fclose(f);
			return false;
		}
	}
	fclose(f);
	return true;
}

/* GPULIMIT_SIM_SET="key=value;key=value": for every GPU, or for the machine. */
static bool apply_overrides(struct sim_machine *m, const char *text)
{
	char copy[400], *save = NULL, *key, *value;

	snprintf(copy, sizeof(copy), "%s", text);
	for (char *part = strtok_r(copy, ";", &save); part; part = strtok_r(NULL, ";", &save)) {
		bool ok = split(part, &key, &value);
		if (ok && !set_machine(m, key, value))
			for (uint32_t i = 0; i < m->ngpus; i++)
				ok = ok && set_gpu(&m->gpus[i].model, key, value);
		if (!ok) {
			sim_complain("GPULIMIT_SIM_SET: unknown key or bad value: %s", part);
			return false;
		}
	}
	return true;
}

static void spread_copies(struct sim_machine *m, uint64_t want)
{
	struct sim_model read[SIM_MAX_GPUS];
	uint32_t have = m->ngpus, n = 0;

	for (uint32_t i = 0; i < have; i++)
		read[i] = m->gpus[i].model;
	if (want) {
		have = 1;
		read[0].count = want;
	}
	for (uint32_t i = 0; i < have; i++) {
		uint64_t copies = read[i].count ? read[i].count : 1;
		for (uint64_t k = 0; k < copies && n < SIM_MAX_GPUS; k++, n++) {
			m->gpus[n].model = read[i];
			if (k)
				m->gpus[n].model.uuid[0] = 0;
		}
	}
	m->ngpus = n;
}

/* MIG devices and vGPUs, once all cards are there. */
static bool divide(struct sim_machine *m)
{
	m->ncards = m->ngpus;
	for (uint32_t i = 0; i < m->ncards; i++)
		m->gpus[i].parent = SIM_NO_GPU;
	for (uint32_t i = 0; i < m->ncards; i++) {
		const struct sim_model *model = &m->gpus[i].model;
		if (model->mig[0] && !sim_mig_layout(m, i, model->mig)) {
			sim_complain("mig = %s: not a list of profiles such as 1g.10gb,-,2g.20gb, or too many", model->mig);
			return false;
		}
		for (uint64_t n = 0; model->vgpu[0] && n < model->vgpus; n++)
			sim_vgpu_add(m, i);
	}
	return true;
}

static bool finish(struct sim_machine *m, const char *profile)
{
	const char *version = getenv("GPULIMIT_SIM_DRIVER_VERSION");
	const char *gpus = getenv("GPULIMIT_SIM_GPUS");

	spread_copies(m, gpus ? strtoull(gpus, NULL, 10) : 0);
	for (uint32_t i = 0; i < m->ngpus; i++) {
		struct sim_model *model = &m->gpus[i].model;
		if (!model->uuid[0])
			sim_make_uuid(model->uuid, sizeof(model->uuid), "GPU-", profile, i);
		if (!model->pci_bus)
			model->pci_bus = 0x10 + 0x11 * i;
		if (!model->granule_bytes)
			model->granule_bytes = 1;
		if (!model->pool_step_bytes)
			model->pool_step_bytes = 1;
		if (!model->concurrency)
			model->concurrency = 1;
		if (model->concurrency > SIM_MAX_LANES)
			model->concurrency = SIM_MAX_LANES;
		if (!model->timeslice_ns)
			model->timeslice_ns = 1000;
		m->gpus[i].serving = SIM_NO_QUEUE;
	}
	if (version && strchr(version, '.'))
		snprintf(m->driver_version, sizeof(m->driver_version), "%s", version);
	else if (version)
		m->cuda_version = (uint32_t)strtoul(version, NULL, 10);
	return divide(m);
}

/* What decides a machine, as one line: compared when a process joins one that exists. */
void sim_profile_config(char *out, size_t size)
{
	const char *profile = getenv("GPULIMIT_SIM_PROFILE"), *set = getenv("GPULIMIT_SIM_SET");
	const char *gpus = getenv("GPULIMIT_SIM_GPUS"), *version = getenv("GPULIMIT_SIM_DRIVER_VERSION");

	snprintf(out, size, "%s gpus=%s version=%s set=%s", profile ? profile : "h100", gpus ? gpus : "", version ? version : "",
		set ? set : "");
}

bool sim_profile_load(struct sim_machine *m)
{
	const char *profile = getenv("GPULIMIT_SIM_PROFILE"), *set = getenv("GPULIMIT_SIM_SET");

	if (!profile || !*profile)
		profile = "h100";
	m->cuda_version = 13000;
	snprintf(m->driver_version, sizeof(m->driver_version), "580.159.04");
	if (!read_file(m, profile) || (set && !apply_overrides(m, set)))
		return false;
	if (!m->ngpus) {
		sim_complain("profile %s has no [gpu] section", profile);
		return false;
	}
	return finish(m, profile);
}
