# SPDX-License-Identifier: Apache-2.0
"""The metric catalogue: every series that the daemon serves, in one table.

The exporter refuses to serve what is not here; docs/metrics.md, the aliases of other exporters and the tests
are made from it. Names lack the prefix. A label in brackets is there only where its value is known, or only
with debug labels. Rows with `silent` say when there is nothing to show yet.
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
    "The card, whoever uses it: NVML's word, and what quotas have set aside of it.",
    GPU,
    (
        ("gpu_info", G, ("gpu_name", "[driver_version]"), "Constant 1 for each GPU ever seen.", "NVML"),
        ("gpu_memory_total_bytes", G, (), "Memory of the card.", "NVML"),
        ("gpu_memory_used_bytes", G, (), "Memory in use on the card, by anybody.", "NVML"),
        ("gpu_memory_free_bytes", G, (), "Memory free on the card.", "NVML"),
        ("gpu_utilization_ratio", G, (), "Part of the time in which any kernel ran.", "NVML"),
        ("gpu_memory_utilization_ratio", G, (), "Part of the time in which the memory controller was busy.", "NVML"),
        ("gpu_process_count", G, (), "Compute processes on the card.", "NVML"),
        ("gpu_unregistered_process_count", G, (), "Compute processes that are under no quota.", "NVML and the registry"),
        ("gpu_encoder_utilization_ratio", G, (), "Part of the time in which the video encoder was busy.", "NVML"),
        ("gpu_decoder_utilization_ratio", G, (), "Part of the time in which the video decoder was busy.", "NVML"),
        ("gpu_ecc_errors_total", C, ("kind",), "Memory errors since the driver was loaded: corrected or uncorrected.", "NVML"),
        ("gpu_power_watts", G, (), "Power drawn now.", "NVML"),
        ("gpu_energy_joules_total", C, (), "Energy used since the driver was loaded.", "NVML"),
        ("gpu_temperature_celsius", G, (), "Temperature of the chip.", "NVML"),
        ("gpu_clock_hertz", G, ("domain",), "Clock now: graphics, sm, memory or video.", "NVML"),
        ("gpu_throttle_reason", G, ("reason",), "1 while clocks are held down for this reason.", "NVML"),
        ("gpu_xid_errors_total", C, ("xid",), "Errors that the driver reported, since the daemon started.", "NVML events"),
        ("gpu_last_xid_timestamp_seconds", G, (), "When the driver last reported an error.", "NVML events"),
        ("gpu_lost", G, (), "1 while NVML says that the card is lost, or no longer lists it.", "NVML"),
        ("gpu_compute_requested_ratio", G, (), "Sum of the requests of tenants on the card; not in MIG mode.", "quotas"),
        ("gpu_memory_reserved_bytes", G, (), "Sum of the memory quotas of tenants on the card and its MIG devices.", "quotas"),
        ("gpu_compute_unallocated_ratio", G, (), "Part of the card's time that no request has set aside; not in MIG mode.", "quotas"),
    ),
)  # fmt: skip

CLIENT_SECTION = Section(
    "Client",
    "What each tenant was promised, has had and was refused, per card or MIG device, whose UUID is then `gpu_uuid`. A pod has `namespace` and `pod`, by the "
    "cluster's word; where there is none, and outside Kubernetes, `tenant` is in their place. With debug labels there is one series a process, "
    "with `client_id` and `host_pid`; without them processes are added up.",
    CLIENT,
    (
        ("client_info", G, ("[unit]", "[user]", "[command]", "[mig_profile]"), "Constant 1; who the client is.", "the kernel's word of the processes"),
        ("client_managed_allocated_bytes", G, (), "Memory that the client has asked for and holds.", "books"),
        ("client_managed_allocated_peak_bytes", G, (), "The most that it has held.", "books"),
        ("client_nvml_used_bytes", G, (), "Memory of its processes by the driver's count.", "NVML"),
        ("client_memory_overhead_baseline_bytes", G, (),
         "What its processes cost besides what they ask for: moving average, taken while that is little, "
         "between 256 MiB and 4 GiB a process.", "NVML and books"),
        ("client_memory_need_estimated_bytes", G, (), "Memory asked for, and the baseline.", "NVML and books"),
        ("client_memory_need_upper_bytes", G, (), "Memory asked for, and the driver's count: never too little.", "NVML and books"),
        ("client_memory_quota_bytes", G, (), "Memory quota; 0 is none.", "quotas"),
        ("client_memory_quota_exceeded", G, (), "1 while books or driver say that it holds more than its quota.", "NVML and books"),
        ("client_memory_quota_source_info", G, ("source",), "Constant 1; who said the quota: annotation, env, api, config, slices, default or none.", "quotas"),
        ("client_core_quota_config_percent", G, (), "Limit on GPU time; 100 is none.", "quotas"),
        ("client_core_quota_effective_percent", G, (), "What it may have now: its limit, or its part while others want the card too.", "arbitration"),
        ("client_core_request_percent", G, (), "GPU time that is guaranteed; 0 is none.", "quotas"),
        ("client_weight", G, (), "Weight by which GPU time is shared among tenants.", "quotas"),
        ("client_core_window_usage_ms", G, (), "GPU time in the last window, of about a second.", "books"),
        ("client_core_window_limit_ms", G, (), "GPU time that it could have had in that window.", "quotas"),
        ("client_core_usage_ratio", G, (), "Usage over limit in that window.", "books"),
        ("client_throttled", G, (), "1 if it had to wait for more than a tenth of the last window.", "books"),
        ("client_pending_drop", G, (), "1 while its turn is over and its queue not yet empty.", "arbitration"),
        ("client_quota_debt_ms", G, (), "GPU time had beyond what was granted.", "arbitration"),
        ("client_gpu_seconds_total", C, (), "GPU time used.", "books"),
        ("client_throttled_seconds_total", C, (), "Time that its threads have waited for GPU time.", "books"),
        ("client_launches_total", C, ("kind",), "Launches: kernel, cooperative or graph.", "books"),
        ("client_allocations_denied_total", C, ("reason",), "Allocations refused: quota, or card (inside the quota, but the card was full).", "books"),
        ("client_share_entitled_ratio", G, (), "Part of the card that is its due beside those active now.", "arbitration"),
        ("client_share_achieved_ratio", G, (), "Part of the card that it had in the last window.", "books"),
        ("client_enforcement_state", G, ("state",),
         "1 for the state that holds: enforced; standalone: limited, but not by this daemon; degraded: its "
         "books are spoiled, its processes have yet to come back, or their GPU time is measured by the wall clock, because the driver "
         "refuses timing events; off: a process of it runs unlimited.", "registry and NVML"),
        ("client_gang_info", G, ("gang", "mode"),
         "Constant 1 for a client in a gang; mode: named, or auto for a tenant whose processes wait for each other.", "quotas and books"),
        ("client_energy_joules_total", C, (), "Its part of the card's energy, by GPU time.", "NVML and books"),
    ),
)  # fmt: skip

SCHEDULER_SECTION = Section(
    "Scheduler",
    "How GPU time is divided on each card, or on each MIG device, whose UUID is then `gpu_uuid`.",
    GPU,
    (
        ("scheduler_running_clients", G, (), "Clients that have used the card in the last window.", "books"),
        ("scheduler_request_queue_clients", G, (), "Clients that wait for GPU time now.", "arbitration"),
        ("scheduler_wait_queue_clients", G, (), "Clients that waited for GPU time through the last window and got nothing, or that wait for memory.", "books"),
        ("scheduler_running_memory_bytes", G, (), "Memory that the clients on the card hold.", "books"),
        ("scheduler_peak_running_memory_bytes", G, (), "The most that they have held at once.", "books"),
        ("scheduler_memory_safe_limit_bytes", G, (), "What quotas may promise in sum.", "configuration"),
        ("scheduler_memory_overloaded", G, (), "1 while clients hold more than that, or than the card has.", "books"),
        ("scheduler_drop_lock_total", C, ("reason",), "Turns ended: quantum, idle, limit, suspended, preempted or left.", "arbitration"),
        ("scheduler_wait_for_mem_total", C, (), "Allocations made to wait for memory, where waiting is allowed.", "arbitration"),
        ("scheduler_mem_available_total", C, (), "Times that a waiting client was told that memory may have come free.", "arbitration"),
        ("scheduler_rounds_total", C, (), "Decisions taken for the card.", "arbitration"),
        ("scheduler_turn_seconds", H, (), "How long turns lasted.", "arbitration"),
        ("scheduler_grant_wait_seconds", H, (), "How long clients that were held back waited for their next grant.", "arbitration"),
        ("scheduler_release_seconds", H, (), "From the end of a turn until its queue was empty.", "arbitration"),
        ("scheduler_jain_index", G, (),
         "Fairness of the last window among clients that wanted more: achieved over entitled, 1 is best.", "arbitration"),
    ),
)  # fmt: skip

TRAFFIC_SECTION = Section(
    "Scheduler, of the node",
    "What is not of one card.",
    (),
    (
        ("scheduler_messages_total", C, ("type", "direction"), "Messages received from processes and sent to them.", "HTTP"),
        ("scheduler_client_disconnect_total", C, ("reason",), "Processes gone: exited, replaced (their pid has another process), spoiled (their books).", "registry"),
    ),
)  # fmt: skip

POD_SECTION = Section(
    "Pod view",
    "Per pod and card, in the terms of k8s-vgpu-monitor; `gpu_id` is NVML's index, for a MIG device with its number in the card: `0:2`.",
    POD,
    (
        ("pod_gpu_sm_util", G, (), "GPU time of the last window, in percent of the card.", "books"),
        ("pod_gpu_memory_used", G, (), "Memory in use, in bytes.", "NVML and books"),
        ("pod_total_gpu_memory", G, (), "Memory quota in bytes; the card's memory over the ratio where only a ratio is set.", "quotas"),
    ),
)  # fmt: skip

GANG_SECTION = Section(
    "Gangs",
    "Tenants whose processes wait for each other, and so get GPU time together. `gang` is a namespace and a name, as in `team-a/job`, "
    "a user and a name (`uid:1000/job`), or the name of a tenant that is a gang by itself.",
    ("gang",),
    (
        ("gang_members", G, (), "Tenants in the gang.", "quotas and books"),
        ("gang_gpus", G, (), "GPUs on which they are a gang.", "quotas and books"),
    ),
    NO_GANG,
)  # fmt: skip
GANG_CLIENT_SECTION = Section(
    "Gangs' clients",
    "Per tenant, over all its GPUs.",
    TENANT,
    (
        ("client_gang_released_total", C, (), "Launches let go whatever limit and turn, since running work waited for them.", "books"),
    ),
)  # fmt: skip

VGPU_SECTION = Section(
    "vGPU host",
    "Of cards that a hypervisor shares out as NVIDIA vGPUs. `host` and `instance` are the node.",
    CARD,
    (
        ("vgpu_host_mode", G, ("host_mode",), "0 non-SR-IOV, 1 SR-IOV, 2 disabled or unknown.", "NVML"),
        ("vgpu_scheduler_state", G, ("[arr_supported]",), "Adaptive round robin: 0 default, 1 off, 2 on.", "NVML"),
        ("vgpu_scheduler_policy", G, (), "0 unknown, 1 best effort, 2 equal share, 3 fixed share.", "NVML"),
        ("vgpu_scheduler_timeslice_seconds", G, (), "Length of a vGPU's time slice; under best effort there is none.", "NVML"),
        ("vgpu_scheduler_overruns_total", C, (),
         "Time slices in the scheduler's log that ran for longer than their target. The log is read once a period and "
         "holds 200 slices, so this counts a sample of them.", "NVML"),
    ),
    NO_VGPU,
)  # fmt: skip

VGPU_INSTANCE_SECTION = Section(
    "vGPU instances",
    "Of each vGPU.",
    VGPU_INSTANCE,
    (
        ("vgpu_utilization_ratio", G, (), "Part of the card's time that its kernels had, lately.", "NVML samples"),
        ("vgpu_memory_utilization_ratio", G, (), "Part of the time in which it kept the memory controller busy.", "NVML samples"),
        ("vgpu_memory_used_bytes", G, (), "Memory in use.", "NVML"),
        ("vgpu_memory_total_bytes", G, (), "Memory of the vGPU.", "NVML"),
        ("vgpu_active", G, (), "1 while something runs on it: a process by the driver's accounting, or else a busy sample.", "NVML"),
        ("vgpu_encoder_utilization_ratio", G, (), "Part of the time in which the encoder was busy.", "NVML"),
        ("vgpu_decoder_utilization_ratio", G, (), "Part of the time in which the decoder was busy.", "NVML"),
        ("vgpu_license_info", G, ("state",),
         "Constant 1; state of the licence: unknown, uninitialized, unlicensed_unrestricted, unlicensed_restricted, "
         "unlicensed or licensed.", "NVML"),
        ("vgpu_guest_driver_info", G, ("driver_version",), "Constant 1; driver in the guest.", "NVML"),
    ),
    NO_VGPU,
)  # fmt: skip

MIG_MODE_SECTION = Section(
    "MIG",
    "Of cards that can be partitioned.",
    CARD,
    (("mig_mode", G, (), "1 while the card is in MIG mode, 0 where it could be.", "NVML"),),
    NOT_MIG,
)
MIG_SECTION = Section(
    "MIG instances",
    "Of each MIG device. Its tenants are in the client families, with the MIG device's UUID as `gpu_uuid`.",
    MIG,
    (
        ("mig_instance_info", G, (), "Constant 1.", "NVML"),
        ("mig_instance_memory_used_bytes", G, (), "Memory in use.", "NVML"),
        ("mig_instance_memory_total_bytes", G, (), "Memory of the MIG device.", "NVML"),
        ("mig_instance_utilization_ratio", G, (), "Part of the time in which its GPU instance was busy.", "NVML's GPM, from Hopper on"),
        ("mig_instance_memory_utilization_ratio", G, (), "Part of its GPU instance's memory bandwidth in use.", "NVML's GPM, from Hopper on"),
        ("mig_instance_memory_reserved_bytes", G, (), "Sum of the memory quotas of tenants on it.", "quotas"),
        ("mig_instance_compute_requested_ratio", G, (), "Sum of the requests of tenants on it.", "quotas"),
    ),
    NO_MIG,
)  # fmt: skip

GUEST_SECTION = Section(
    "Guests",
    "From inside virtual machines. Labels are stamped on by the collector, never by the guest.",
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
    "How asking each virtual machine goes. Served by who collects: `gpulimit guest-collector`, or the daemon with `--guests`.",
    VMI,
    (
        ("guest_up", G, (), "1 if the guest answered last time.", "collector"),
        ("guest_scrape_duration_seconds", G, (), "How long its answer took.", "collector"),
        ("guest_last_success_timestamp_seconds", G, (), "When it last answered.", "collector"),
        ("guest_gpu_status", G, (), "0 if the guest's agent reaches all of its GPUs, else NVML's number of the error: 9 and 12 are no driver.", "guest agent"),
        ("guest_scrape_failures_total", C, ("reason",),
         "Times that it did not answer: refused, timeout, broken, redirect, status, too_large, encoding, tls, empty or no_vsock.", "collector"),
        ("guest_samples_dropped_total", C, ("reason",),
         "Samples of it that were not taken over: not_listed (of no use here), or what its page should not have held: "
         "range, label, mig, too_many_gpus, unconfirmed, malformed, duplicate and others.", "collector"),
    ),
    NO_COLLECTOR,
)  # fmt: skip
COLLECTOR_SECTION = Section(
    "Guests' collector",
    "Who is to be asked, and whether this collector does.",
    (),
    (
        ("guest_collector_active", G, (), "1: this collector asks; 0: another one on this node does.", "collector"),
        ("guest_source_up", G, ("source",), "1 if the list of guests is fresh.", "file, or the cluster"),
        ("guest_targets", G, ("source",), "Guests in the list.", "file, or the cluster"),
    ),
    NO_COLLECTOR,
)  # fmt: skip
AGENT_SECTION = Section(
    "Guest agent",
    "`gpulimit guest-agent` serves these, `gpulimit_nvml_up` and the GPU families, as far as they make sense inside a machine.",
    (),
    (
        ("guest_agent_info", G, ("version", "[boot_id]"), "Constant 1; boot_id changes when the machine is started.", "agent"),
        ("guest_agent_status", G, (), "0 if NVML answers and every GPU is well, else its number of the error.", "agent"),
    ),
    NO_AGENT,
)  # fmt: skip

DAEMON_SECTION = Section(
    "Daemon",
    "The daemon itself, besides the `process_*` families of every Prometheus client.",
    (),
    (
        ("build_info", G, ("version", "python_version"), "Constant 1.", "daemon"),
        ("up", G, (), "1: the daemon divides GPU time.", "arbitration"),
        ("nvml_up", G, (), "1 if NVML has answered lately.", "NVML"),
        ("gpus_failed", G, (), "Cards that NVML counts and that cannot be used, with the reason in the log and in `gpulimit status`.", "NVML"),
        ("sampler_up", G, ("sampler",), "1 if a part of the daemon has done its work lately.", "daemon"),
        ("sampler_last_success_timestamp_seconds", G, ("sampler",), "When it last did.", "daemon"),
        ("sampler_duration_seconds", G, ("sampler",), "How long that took.", "daemon"),
        ("sampler_errors_total", C, ("sampler", "code"), "What went wrong in it.", "daemon"),
        ("workers", G, (), "Registered processes.", "registry"),
        ("tenants", G, (), "Tenants with processes.", "registry"),
        ("registrations_total", C, ("result",), "Registrations: accepted, refused or failed.", "HTTP"),
        ("longpoll_waiting", G, (), "Processes that wait for commands.", "HTTP"),
        ("shm_rejected_total", C, ("reason",), "Shared memory that was not used: type, owner, size, layout, spoiled or other.", "segments"),
        ("kube_watch_up", G, (), "1 while the watch on the cluster's pods works.", "Kubernetes"),
        ("kube_watch_restarts_total", C, (), "Times that the watch was begun again.", "Kubernetes"),
        ("kube_kubelet_fallback", G, (), "1 while pods are known from the kubelet alone, since the API server is away.", "Kubernetes"),
        ("kube_pods", G, (), "Pods of this node that are known.", "Kubernetes"),
        ("kube_quota_invalid", G, ("namespace", "pod"), "1 for each pod that names a quota that cannot be followed.", "annotations"),
        ("kube_objects_unreadable_total", C, (), "Objects that were no pods, or none that can be read.", "Kubernetes"),
        ("kube_events_total", C, ("result",), "Events about pods: sent, failed, or dropped since too many were waiting.", "Kubernetes"),
        ("device_plugin_registrations_total", C, (), "Times that the kubelet was told of the cards.", "device plugin"),
        ("device_plugin_allocations_total", C, ("result",), "Containers that were handed cards (granted) or could not be (refused).", "device plugin"),
        ("device_plugin_pod_resources_up", G, (), "1 while the kubelet answers which pods have which devices; else its record alone is read.", "device plugin"),
        ("device_plugin_slices", G, (*GPU, "state"), "Slices of a card: offered, withheld while it does not answer well, and allotted to pods; allocatable are those that the kubelet knows, where it says so.", "device plugin"),
        ("device_plugin_card_returns_total", C, GPU, "Times that a card was offered again after it had not answered well.", "device plugin"),
        ("series_dropped_total", C, ("reason",), "Clients left out of a scrape: too many of them.", "exporter"),
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
"""Named as users of nvshare know them, and not as Prometheus' linter would: it finds these alone."""
