# SPDX-License-Identifier: Apache-2.0
"""The metric catalogue: every series that the daemon serves, in one table.

The exporter refuses to serve a series that is not here. docs/metrics.md, the aliases of other exporters and
the tests are generated from this table. Names lack the prefix. A label in brackets is only there if its value
is known, or only with debug labels. `silent` says when a section has nothing to show.
"""

from __future__ import annotations

from hypervisor.metrics.family import Kind, Metric, Section

GPU = ("gpu_uuid", "gpu_index")
TENANT = ("[namespace]", "[pod]", "[container]", "[tenant]")
CLIENT = (*TENANT, *GPU, "[client_id]", "[host_pid]")
POD = ("[namespace]", "[pod]", "[tenant]", "gpu_id")
CARD = (*GPU, "[gpu]", "[instance]", "[host]")
VGPU_INSTANCE = (*CARD, "vgpu_id", "[vgpu_uuid]", "[vgpu_type]", "[vgpu_vm_id]")
MIG = (*CARD, "mig_instance", "[mig_uuid]", "[mig_profile]", "[gpu_instance_id]", "[compute_instance_id]")
GUEST = ("namespace", "name", "node", "gpu_index", "gpu_uuid", "[gpu_name]")
VMI = ("namespace", "name", "node")
NO_GANG = "no tenants wait for each other over several GPUs"
NO_VGPU, NO_MIG = "the host has no vGPU", "no GPU is in MIG mode"
NOT_MIG = "no GPU knows MIG"
KUBERNETES = (
    *("kube_watch_up", "kube_watch_restarts_total", "kube_kubelet_fallback", "kube_pods"),
    *("kube_quota_invalid", "kube_objects_unreadable_total", "kube_events_total"),
)
PLUGIN = (
    *("device_plugin_registrations_total", "device_plugin_allocations_total"),
    "device_plugin_pod_resources_up",
    *("device_plugin_slices", "device_plugin_card_returns_total"),
)
NO_GUESTS, NO_COLLECTOR, NO_AGENT = "no guest answers", "no guests are collected", "not a guest's agent"
NO_KUBERNETES, NO_PLUGIN = "not in a cluster", "no device plugin"


G: Kind = "gauge"
C: Kind = "counter"
H: Kind = "histogram"

GPU_SECTION = Section(
    "GPU",
    "Each card: its values by NVML, and the parts that quotas reserve.",
    GPU,
    (
        ("gpu_info", G, ("gpu_name", "[driver_version]"), "Constant 1 for each GPU ever seen.", "NVML"),
        ("gpu_memory_total_bytes", G, (), "Memory of the card.", "NVML"),
        ("gpu_memory_used_bytes", G, (), "Memory in use on the card, by all processes.", "NVML"),
        ("gpu_memory_free_bytes", G, (), "Memory free on the card.", "NVML"),
        ("gpu_utilization_ratio", G, (), "Fraction of time in which any kernel ran.", "NVML"),
        ("gpu_memory_utilization_ratio", G, (), "Fraction of time in which the memory controller was busy.", "NVML"),
        ("gpu_process_count", G, (), "Compute processes on the card.", "NVML"),
        ("gpu_unregistered_process_count", G, (), "Compute processes that are under no quota.", "NVML and the registry"),
        ("gpu_encoder_utilization_ratio", G, (), "Fraction of time in which the video encoder was busy.", "NVML"),
        ("gpu_decoder_utilization_ratio", G, (), "Fraction of time in which the video decoder was busy.", "NVML"),
        ("gpu_ecc_errors_total", C, ("kind",), "Memory errors since the driver was loaded: corrected or uncorrected.", "NVML"),
        ("gpu_power_watts", G, (), "Power drawn now.", "NVML"),
        ("gpu_energy_joules_total", C, (), "Energy used since the driver was loaded.", "NVML"),
        ("gpu_temperature_celsius", G, (), "Temperature of the chip.", "NVML"),
        ("gpu_clock_hertz", G, ("domain",), "Clock now: graphics, sm, memory or video.", "NVML"),
        ("gpu_throttle_reason", G, ("reason",), "1 while this reason reduces the clocks.", "NVML"),
        ("gpu_xid_errors_total", C, ("xid",), "Errors that the driver has reported since the daemon started.", "NVML events"),
        ("gpu_last_xid_timestamp_seconds", G, (), "Unix time of the driver's last reported error.", "NVML events"),
        ("gpu_lost", G, (), "1 while NVML reports the card as lost, or does not list it any more.", "NVML"),
        ("gpu_compute_requested_ratio", G, (), "Sum of the requests of tenants on the card; not in MIG mode.", "quotas"),
        ("gpu_memory_reserved_bytes", G, (), "Sum of the memory quotas of tenants on the card and its MIG devices.", "quotas"),
        ("gpu_compute_unallocated_ratio", G, (), "Fraction of the card's time that no request reserves; not in MIG mode.", "quotas"),
    ),
)  # fmt: skip

CLIENT_SECTION = Section(
    "Client",
    "Quotas, use and refusals of each tenant, per card or MIG device (`gpu_uuid` is then the MIG device's UUID). A pod's tenant has the cluster's `namespace` "
    "and `pod`; other tenants have `tenant` instead. With debug labels there is one series per process, with `client_id` and `host_pid`. Without them, "
    "processes are summed.",
    CLIENT,
    (
        ("client_info", G, ("[unit]", "[user]", "[command]", "[mig_profile]"), "Constant 1; identity of the client.", "kernel"),
        ("client_managed_allocated_bytes", G, (), "Memory that the client has requested and holds.", "usage segments"),
        ("client_managed_allocated_peak_bytes", G, (), "Peak of the memory that the client has held.", "usage segments"),
        ("client_nvml_used_bytes", G, (), "Memory of the client's processes by the driver's figures.", "NVML"),
        ("client_memory_overhead_baseline_bytes", G, (),
         "Overhead of the client's processes beyond their requests: a moving average of the samples with small requests, "
         "between 256 MiB and 4 GiB per process.", "NVML and usage segments"),
        ("client_memory_need_estimated_bytes", G, (), "Requested memory plus the baseline.", "NVML and usage segments"),
        ("client_memory_need_upper_bytes", G, (), "Requested memory plus the driver's figure: an upper bound.", "NVML and usage segments"),
        ("client_memory_quota_bytes", G, (), "Memory quota; 0 is none.", "quotas"),
        ("client_memory_quota_exceeded", G, (), "1 while the client holds more than its quota, by its usage segment or by the driver.", "NVML and usage segments"),
        ("client_memory_quota_source_info", G, ("source",), "Constant 1; source of the quota: annotation, env, api, config, slices, default or none.", "quotas"),
        ("client_core_quota_config_percent", G, (), "Limit on GPU time; 100 is none.", "quotas"),
        ("client_core_quota_effective_percent", G, (), "Share of GPU time that the client may have now: its limit, or its share while other clients want the card.", "scheduler"),
        ("client_core_request_percent", G, (), "Guaranteed share of GPU time; 0 is none.", "quotas"),
        ("client_weight", G, (), "Weight by which GPU time is shared among tenants.", "quotas"),
        ("client_core_window_usage_ms", G, (), "GPU time in the last window, of about a second.", "usage segments"),
        ("client_core_window_limit_ms", G, (), "GPU time that its quota allowed in that window.", "quotas"),
        ("client_core_usage_ratio", G, (), "Usage over limit in that window.", "usage segments"),
        ("client_throttled", G, (), "1 if the client waited for more than a tenth of the last window.", "usage segments"),
        ("client_pending_drop", G, (), "1 while the client's turn is over and its queue is not empty yet.", "scheduler"),
        ("client_quota_debt_ms", G, (), "GPU time used beyond the grant.", "scheduler"),
        ("client_gpu_seconds_total", C, (), "GPU time that the client has used.", "usage segments"),
        ("client_throttled_seconds_total", C, (), "Time for which the client's threads have waited for GPU time.", "usage segments"),
        ("client_launches_total", C, ("kind",), "Launches: kernel, cooperative or graph.", "usage segments"),
        ("client_allocations_denied_total", C, ("reason",), "Refused allocations: quota, or card (inside the quota, but the card was full).", "usage segments"),
        ("client_share_entitled_ratio", G, (), "Share of the card that is due to the client beside the active clients.", "scheduler"),
        ("client_share_achieved_ratio", G, (), "Share of the card that the client had in the last window.", "usage segments"),
        ("client_enforcement_state", G, ("state",),
         "1 for the current state. enforced; standalone: limited, but not by this daemon; degraded: its usage segment is damaged, its "
         "processes have not registered again yet, or the wall clock measures their GPU time because the driver refuses timing events; "
         "off: a process of the client runs without a limit.", "registry and NVML"),
        ("client_gang_info", G, ("gang", "mode"),
         "Constant 1 for a client in a gang; mode: named, or auto for a tenant whose processes wait for each other.", "quotas and usage segments"),
        ("client_energy_joules_total", C, (), "The client's part of the card's energy, by GPU time.", "NVML and usage segments"),
    ),
)  # fmt: skip

SCHEDULER_SECTION = Section(
    "Scheduler",
    "Division of GPU time on each card or MIG device (`gpu_uuid` is then the MIG device's UUID).",
    GPU,
    (
        ("scheduler_running_clients", G, (), "Clients that have used the card in the last window.", "usage segments"),
        ("scheduler_request_queue_clients", G, (), "Clients that wait for GPU time now.", "scheduler"),
        ("scheduler_wait_queue_clients", G, (), "Clients that waited for the whole last window and got no GPU time, or that wait for memory.", "usage segments"),
        ("scheduler_running_memory_bytes", G, (), "Memory that the clients on the card hold.", "usage segments"),
        ("scheduler_peak_running_memory_bytes", G, (), "Peak of the memory that the clients on the card have held together.", "usage segments"),
        ("scheduler_memory_safe_limit_bytes", G, (), "Largest sum of memory quotas that is allowed.", "configuration"),
        ("scheduler_memory_overloaded", G, (), "1 while clients hold more than the safe limit, or than the card has.", "usage segments"),
        ("scheduler_drop_lock_total", C, ("reason",), "Ended turns by reason: quantum, idle, limit, suspended, preempted or left.", "scheduler"),
        ("scheduler_wait_for_mem_total", C, (), "Allocations that waited for memory.", "scheduler"),
        ("scheduler_mem_available_total", C, (), "Wake-ups of waiting clients because memory may have come free.", "scheduler"),
        ("scheduler_rounds_total", C, (), "Decisions of the scheduler for the card.", "scheduler"),
        ("scheduler_turn_seconds", H, (), "Length of turns.", "scheduler"),
        ("scheduler_grant_wait_seconds", H, (), "Time for which paused clients waited for their next grant.", "scheduler"),
        ("scheduler_release_seconds", H, (), "Time from the end of a turn until its queue was empty.", "scheduler"),
        ("scheduler_jain_index", G, (),
         "Jain's fairness index of achieved over entitled shares, in the last window, of clients that wanted more; 1 is best.", "scheduler"),
    ),
)  # fmt: skip

TRAFFIC_SECTION = Section(
    "Scheduler, of the node",
    "Counters that do not belong to one card.",
    (),
    (
        ("scheduler_messages_total", C, ("type", "direction"), "Messages received from processes and sent to them.", "HTTP"),
        ("scheduler_client_disconnect_total", C, ("reason",), "Processes that have gone: exited, replaced (another process has the pid), spoiled (the usage segment is damaged).", "registry"),
    ),
)  # fmt: skip

POD_SECTION = Section(
    "Pod view",
    "Values per pod and card, with the names of k8s-vgpu-monitor. `gpu_id` is NVML's index; for a MIG device it also has its number on the card: `0:2`.",
    POD,
    (
        ("pod_gpu_sm_util", G, (), "GPU time of the last window, in percent of the card.", "usage segments"),
        ("pod_gpu_memory_used", G, (), "Memory in use, in bytes.", "NVML and usage segments"),
        ("pod_total_gpu_memory", G, (), "Memory quota in bytes; if only a sharing ratio is set, the card's memory divided by it.", "quotas"),
    ),
)  # fmt: skip

GANG_SECTION = Section(
    "Gangs",
    "Tenants whose processes wait for each other, and so get GPU time together. The label `gang` is a namespace and a name, as in `team-a/job`, "
    "a user and a name (`uid:1000/job`), or the name of a tenant that is a gang by itself.",
    ("gang",),
    (
        ("gang_members", G, (), "Tenants in the gang.", "quotas and usage segments"),
        ("gang_gpus", G, (), "GPUs on which they are a gang.", "quotas and usage segments"),
    ),
    NO_GANG,
)  # fmt: skip
GANG_CLIENT_SECTION = Section(
    "Gangs' clients",
    "Per tenant, over all its GPUs.",
    TENANT,
    (
        ("client_gang_released_total", C, (), "Launches that started regardless of limit and turn, because running work waited for them.", "usage segments"),
    ),
)  # fmt: skip

GANG_TURN_SECTION = Section(
    "Gangs' turns",
    "Turns that a gang has on all of its GPUs at one time, of all gangs of the node. Its GPUs' other turns are in the scheduler's families.",
    (),
    (
        ("gang_turns_total", C, ("reason",),
         "Turns of gangs that ended: quantum, idle, limit, suspended, preempted, moved (GPUs of the gang came or went), alone (no other "
         "tenant was left there) or left.", "scheduler"),
        ("gang_turn_seconds", H, (), "Length of gangs' turns, by the clock.", "scheduler"),
        ("gang_drain_seconds", H, (), "From the end of a gang's turn until its work was done on all of its GPUs.", "scheduler"),
    ),
)  # fmt: skip

VGPU_SECTION = Section(
    "vGPU host",
    "Cards that a hypervisor shares as NVIDIA vGPUs. `host` and `instance` are the node.",
    CARD,
    (
        ("vgpu_host_mode", G, ("host_mode",), "0 non-SR-IOV, 1 SR-IOV, 2 disabled or unknown.", "NVML"),
        ("vgpu_scheduler_state", G, ("[arr_supported]",), "Adaptive round robin: 0 default, 1 off, 2 on.", "NVML"),
        ("vgpu_scheduler_policy", G, (), "0 unknown, 1 best effort, 2 equal share, 3 fixed share.", "NVML"),
        ("vgpu_scheduler_timeslice_seconds", G, (), "Length of a vGPU's time slice; absent under best effort.", "NVML"),
        ("vgpu_scheduler_overruns_total", C, (),
         "Time slices in the scheduler's log that ran for longer than their target. The log is read once a period and "
         "holds 200 slices, so this counts a sample of them.", "NVML"),
    ),
    NO_VGPU,
)  # fmt: skip

VGPU_INSTANCE_SECTION = Section(
    "vGPU instances",
    "Each vGPU.",
    VGPU_INSTANCE,
    (
        ("vgpu_utilization_ratio", G, (), "Recent fraction of the card's time that the vGPU's kernels had.", "NVML samples"),
        ("vgpu_memory_utilization_ratio", G, (), "Fraction of time in which the vGPU kept the memory controller busy.", "NVML samples"),
        ("vgpu_memory_used_bytes", G, (), "Memory in use.", "NVML"),
        ("vgpu_memory_total_bytes", G, (), "Memory of the vGPU.", "NVML"),
        ("vgpu_active", G, (), "1 while the vGPU is busy: it has a process by the driver's accounting, or else a busy sample.", "NVML"),
        ("vgpu_encoder_utilization_ratio", G, (), "Fraction of time in which the encoder was busy.", "NVML"),
        ("vgpu_decoder_utilization_ratio", G, (), "Fraction of time in which the decoder was busy.", "NVML"),
        ("vgpu_license_info", G, ("state",),
         "Constant 1; state of the licence: unknown, uninitialized, unlicensed_unrestricted, unlicensed_restricted, "
         "unlicensed or licensed.", "NVML"),
        ("vgpu_guest_driver_info", G, ("driver_version",), "Constant 1; driver in the guest.", "NVML"),
    ),
    NO_VGPU,
)  # fmt: skip

MIG_MODE_SECTION = Section(
    "MIG",
    "Cards that support MIG.",
    CARD,
    (("mig_mode", G, (), "1 while the card is in MIG mode, else 0.", "NVML"),),
    NOT_MIG,
)
MIG_SECTION = Section(
    "MIG instances",
    "Each MIG device. Its tenants are in the client families, with the MIG device's UUID as `gpu_uuid`.",
    MIG,
    (
        ("mig_instance_info", G, (), "Constant 1.", "NVML"),
        ("mig_instance_memory_used_bytes", G, (), "Memory in use.", "NVML"),
        ("mig_instance_memory_total_bytes", G, (), "Memory of the MIG device.", "NVML"),
        ("mig_instance_utilization_ratio", G, (), "Fraction of time in which its GPU instance was busy.", "NVML's GPM, from Hopper on"),
        ("mig_instance_memory_utilization_ratio", G, (), "Fraction of its GPU instance's memory bandwidth in use.", "NVML's GPM, from Hopper on"),
        ("mig_instance_memory_reserved_bytes", G, (), "Sum of the memory quotas of tenants on it.", "quotas"),
        ("mig_instance_compute_requested_ratio", G, (), "Sum of the requests of tenants on it.", "quotas"),
    ),
    NO_MIG,
)  # fmt: skip

GUEST_SECTION = Section(
    "Guests",
    "Values from inside virtual machines. The collector sets the labels, never the guest.",
    GUEST,
    (
        ("kubevirt_vmi_gpu_utilization_percent", G, (), "GPU utilisation.", "guest agent"),
        ("kubevirt_vmi_gpu_memory_utilization_percent", G, (), "Memory controller utilisation.", "guest agent"),
        ("kubevirt_vmi_gpu_memory_used_bytes", G, (), "Memory in use.", "guest agent"),
        ("kubevirt_vmi_gpu_memory_total_bytes", G, (), "Memory of the GPU.", "guest agent"),
        ("kubevirt_vmi_gpu_temperature_celsius", G, (), "Temperature.", "guest agent"),
        ("kubevirt_vmi_gpu_power_usage_milliwatts", G, (), "Power drawn.", "guest agent"),
        ("kubevirt_vmi_gpu_ecc_errors_single_bit_total", C, (), "Corrected memory errors.", "guest agent"),
        ("kubevirt_vmi_gpu_ecc_errors_double_bit_total", C, (), "Uncorrected memory errors.", "guest agent"),
        ("kubevirt_vmi_gpu_encoder_utilization_percent", G, (), "Encoder utilisation.", "guest agent"),
        ("kubevirt_vmi_gpu_decoder_utilization_percent", G, (), "Decoder utilisation.", "guest agent"),
        ("kubevirt_vmi_gpu_running_processes", G, (), "Compute processes in the guest.", "guest agent"),
    ),
    NO_GUESTS,
)  # fmt: skip
GUEST_SCRAPE_SECTION = Section(
    "Guests' collection",
    "Scrapes of each virtual machine, served by `gpulimit guest-collector`, or by the daemon with `--guests`.",
    VMI,
    (
        ("guest_up", G, (), "1 if the guest answered the last scrape.", "collector"),
        ("guest_scrape_duration_seconds", G, (), "Duration of the guest's last answer.", "collector"),
        ("guest_last_success_timestamp_seconds", G, (), "Unix time of the guest's last answer.", "collector"),
        ("guest_gpu_status", G, (), "0 if the guest's agent reaches all its GPUs, else NVML's error number; 9 and 12 mean no driver.", "guest agent"),
        ("guest_scrape_failures_total", C, ("reason",),
         "Failed scrapes by reason: refused, timeout, broken, redirect, status, too_large, encoding, tls, empty or no_vsock.", "collector"),
        ("guest_samples_dropped_total", C, ("reason",),
         "Dropped samples of the guest by reason: not_listed (not used here), or invalid: range, label, mig, too_many_gpus, "
         "unconfirmed, malformed, duplicate and others.", "collector"),
    ),
    NO_COLLECTOR,
)  # fmt: skip
COLLECTOR_SECTION = Section(
    "Guests' collector",
    "The lists of guests, and if this collector scrapes them.",
    (),
    (
        ("guest_collector_active", G, (), "1 if this collector scrapes, 0 if another one on this node does.", "collector"),
        ("guest_source_up", G, ("source",), "1 if the list of guests is fresh.", "file, or the cluster"),
        ("guest_targets", G, ("source",), "Guests in the list.", "file, or the cluster"),
    ),
    NO_COLLECTOR,
)  # fmt: skip
AGENT_SECTION = Section(
    "Guest agent",
    "`gpulimit guest-agent` serves these, `gpulimit_nvml_up`, and the GPU families that do not depend on quotas.",
    (),
    (
        ("guest_agent_info", G, ("version", "[boot_id]"), "Constant 1; boot_id changes at each start of the machine.", "agent"),
        ("guest_agent_status", G, (), "0 if NVML answers and every GPU works, else NVML's error number.", "agent"),
    ),
    NO_AGENT,
)  # fmt: skip

DAEMON_SECTION = Section(
    "Daemon",
    "The daemon itself, in addition to the `process_*` families of every Prometheus client.",
    (),
    (
        ("build_info", G, ("version", "python_version"), "Constant 1.", "daemon"),
        ("up", G, (), "1 while the daemon divides GPU time.", "scheduler"),
        ("nvml_up", G, (), "1 if NVML has answered recently.", "NVML"),
        ("gpus_failed", G, (), "Cards that NVML counts but that cannot be used; the log and `gpulimit status` have the reason.", "NVML"),
        ("sampler_up", G, ("sampler",), "1 if a component of the daemon has worked recently.", "daemon"),
        ("sampler_last_success_timestamp_seconds", G, ("sampler",), "Unix time at which the component last worked.", "daemon"),
        ("sampler_duration_seconds", G, ("sampler",), "Duration of the component's last work.", "daemon"),
        ("sampler_errors_total", C, ("sampler", "code"), "Errors of the component, by code.", "daemon"),
        ("workers", G, (), "Registered processes.", "registry"),
        ("tenants", G, (), "Tenants with processes.", "registry"),
        ("registrations_total", C, ("result",), "Registrations: accepted, refused or failed.", "HTTP"),
        ("longpoll_waiting", G, (), "Processes that wait for commands.", "HTTP"),
        ("shm_rejected_total", C, ("reason",), "Rejected shared-memory files by reason: type, owner, size, layout, spoiled or other.", "segments"),
        ("kube_watch_up", G, (), "1 while the watch on the cluster's pods works.", "Kubernetes"),
        ("kube_watch_restarts_total", C, (), "Restarts of the watch.", "Kubernetes"),
        ("kube_kubelet_fallback", G, (), "1 while pods are only known from the kubelet, because the API server is away.", "Kubernetes"),
        ("kube_pods", G, (), "Known pods of this node.", "Kubernetes"),
        ("kube_quota_invalid", G, ("namespace", "pod"), "1 for each pod with an invalid quota.", "annotations"),
        ("kube_objects_unreadable_total", C, (), "Objects of the API server that are not valid pods.", "Kubernetes"),
        ("kube_events_total", C, ("result",), "Events about pods: sent, failed, or dropped because too many were waiting.", "Kubernetes"),
        ("device_plugin_registrations_total", C, (), "Registrations with the kubelet.", "device plugin"),
        ("device_plugin_allocations_total", C, ("result",), "Containers that were given cards (granted) or refused.", "device plugin"),
        ("device_plugin_pod_resources_up", G, (), "1 while the kubelet reports the devices of pods; 0 if only its checkpoint is read.", "device plugin"),
        ("device_plugin_slices", G, (*GPU, "state"), "Slices of a card: offered, withheld while the card does not answer well, allotted to pods, and allocatable (known to the kubelet, if it reports them).", "device plugin"),
        ("device_plugin_card_returns_total", C, GPU, "Times that a card was offered again after a failure.", "device plugin"),
        ("series_dropped_total", C, ("reason",), "Clients left out of a scrape because there were too many.", "exporter"),
    ),
    exceptions=dict.fromkeys(KUBERNETES, NO_KUBERNETES) | dict.fromkeys(PLUGIN, NO_PLUGIN),
)  # fmt: skip

SECTIONS = (
    GPU_SECTION,
    CLIENT_SECTION,
    SCHEDULER_SECTION,
    TRAFFIC_SECTION,
    POD_SECTION,
    GANG_SECTION,
    GANG_CLIENT_SECTION,
    GANG_TURN_SECTION,
    VGPU_SECTION,
    VGPU_INSTANCE_SECTION,
    MIG_MODE_SECTION,
    MIG_SECTION,
    GUEST_SECTION,
    GUEST_SCRAPE_SECTION,
    COLLECTOR_SECTION,
    AGENT_SECTION,
    DAEMON_SECTION,
)
CATALOGUE: dict[str, Metric] = {metric.name: metric for section in SECTIONS for metric in section.metrics()}

DEVIATIONS = frozenset(
    {
        "client_core_window_usage_ms",
        "client_core_window_limit_ms",
        "client_quota_debt_ms",
        "gpu_process_count",
        "gpu_unregistered_process_count",
    }
)
"""Names from nvshare, which its users know. Prometheus' linter objects to these and to no others."""
