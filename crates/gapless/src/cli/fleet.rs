//! The commands for clusters: `fleet sim`, `fleet check-log`, `fleet serve`, `fleet admit`, `fleet agent`, `fleet dra`,
//! `fleet place`, `fleet advise`.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet sim --nodes nodes.csv --pods pods.csv --policy all
  gapless fleet serve --in-cluster              beside the scheduler of Kubernetes
  gapless fleet agent --once                    who uses more than was promised?
  gapless fleet place --nodes nodes.json        for another program, by lines of JSON
  gapless fleet advise peaks.csv                which requests could be lower?")]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    pub(crate) command: FleetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Simulate how policies place a list of pods on a cluster
    Sim(Box<SimArgs>),
    /// Check the log of a simulation, independently of the simulator
    CheckLog(CheckLogArgs),
    /// Serve the Kubernetes scheduler: an extender that places pods by GPU memory
    Serve(ServeArgs),
    /// Serve the API server of Kubernetes: a webhook that gives containers their GPUs and their share
    Admit(AdmitArgs),
    /// Report a node's GPUs, give containers their tenants, and mark those who use more than was promised
    Agent(AgentArgs),
    /// Write objects of Dynamic Resource Allocation (Kubernetes 1.34 or later): GPUs that claims share by bytes
    Dra(DraArgs),
    /// Place jobs for another program: one JSON object a line in, one a line out
    Place(PlaceArgs),
    /// Find requests for GPU memory that could be lower, from recorded peaks
    Advise(AdviseArgs),
}

/// The cluster, its pods and the order of arrivals.
#[derive(Debug, ClapArgs)]
pub(crate) struct Workload {
    /// The nodes: CSV (sn,cpu_milli,memory_mib,gpu,model) or JSON; .gz and .zst are read too
    #[arg(long, value_name = "FILE")]
    pub(crate) nodes: PathBuf,

    /// The pods: CSV (name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec, and others) or JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) pods: PathBuf,

    /// Add copies of random pods, or leave some out, until the demand is this many times all GPUs
    #[arg(long, value_name = "LEVEL")]
    pub(crate) arrivals: Option<f64>,

    /// Pods arrive when they are created and leave when they are deleted, as the list says
    #[arg(long, conflicts_with = "arrivals")]
    pub(crate) times: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet sim --nodes nodes.csv --pods pods.csv
  gapless fleet sim --nodes nodes.csv --pods pods.csv --policy all
  gapless fleet sim --nodes nodes.csv --pods pods.csv --arrivals 1.3 --seed 42
  gapless fleet sim --nodes nodes.csv --pods pods.csv --log placements.csv
  gapless fleet sim --nodes nodes.csv --pods pods.csv --format html -o sim.html
  gapless fleet sim --nodes nodes.json --pods pods.json --times --repack 100

A pod is placed at once or fails for good; a pod that fits on any node is always placed. Seeds and orders of arrivals
are those of the published experiment (FGD, USENIX ATC'23). The log has a row for each arrival:
order,pod,node,gpus,milli,cpu_milli,memory_mib,status. With several policies each gets a log: placements-fgd.csv.

Exit code: 0 success, 2 an error.")]
pub(crate) struct SimArgs {
    #[command(flatten)]
    pub(crate) workload: Workload,

    #[arg(
        long,
        value_name = "NAME",
        default_value = "gapless",
        help = format!("The policy ({}), or all", gapless_fleet::policy::NAMES.join(", "))
    )]
    pub(crate) policy: String,

    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 42, allow_negative_numbers = true)]
    pub(crate) seed: i64,

    /// Place pods as `fleet serve` does: the policy learns the mix from the arrivals, and of equal nodes the one whose
    /// name comes first wins
    #[arg(long)]
    pub(crate) online: bool,

    /// Move at most this many pods in the whole run to make room for pods that fit nowhere
    #[arg(long, value_name = "MOVES", default_value_t = 0)]
    pub(crate) repack: usize,

    /// Write every decision to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Write every move to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) moves: Option<PathBuf>,

    #[arg(long, value_enum, default_value_t = SimFormat::Text)]
    pub(crate) format: SimFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimFormat {
    Text,
    Json,
    Html,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet check-log placements.csv --nodes nodes.csv --pods pods.csv
  gapless fleet check-log log.csv --nodes nodes.csv --pods pods.csv --seed 42

The check adds up what the rows say. It shares no account with the simulator. With --seed it also checks that pods
arrive in the order of the published experiment.

Exit code: 0 the log is right, 1 something is wrong, 2 an error.")]
pub(crate) struct CheckLogArgs {
    /// The log
    pub(crate) log: PathBuf,

    #[command(flatten)]
    pub(crate) workload: Workload,

    /// Check the order of arrivals against this seed
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<i64>,

    /// The moves of the run
    #[arg(long, value_name = "FILE")]
    pub(crate) moves: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet serve --in-cluster                               inside a pod, with its service account
  gapless fleet serve --api http://127.0.0.1:8001                through kubectl proxy
  gapless fleet serve --api https://10.0.0.1:6443 --ca ca.crt --token-file token
  gapless fleet serve --in-cluster --tls-cert tls.crt --tls-key tls.key

The scheduler posts to /filter, /prioritize and /bind: whoever reaches that door can bind pods, so it is the loopback
device's unless --listen says otherwise. /healthz and /readyz are for probes, /metrics is for Prometheus: --probes gives
these a door of their own.
deploy/fleet has manifests. The log goes to standard error, one JSON object a line.

Exit code: 0 stopped by a signal, 2 an error.")]
pub(crate) struct ServeArgs {
    /// The address and port to serve
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8888")]
    pub(crate) listen: std::net::SocketAddr,

    /// Another address and port, for /healthz, /readyz and /metrics alone
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) probes: Option<std::net::SocketAddr>,

    /// Use the API server and the service account of this pod
    #[arg(long, conflicts_with_all = ["api", "ca", "token_file"], required_unless_present = "api")]
    pub(crate) in_cluster: bool,

    /// The API server: http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(crate) api: Option<String>,

    /// The authorities that sign the API server's certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// A file with a bearer token for the API server
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// A folder with traces of earlier runs, for pods with gapless.dev/gpu-memory: auto and gapless.dev/trace
    #[arg(long, value_name = "FOLDER")]
    pub(crate) traces: Option<PathBuf>,

    /// Serve TLS with this certificate
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Serve only clients with a certificate of these authorities (needed unless --listen is a loopback address)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet admit --tls-cert tls.crt --tls-key tls.key      answers POST /admit, and GET /healthz
  gapless fleet admit --pod pod.json                            prints a pod as the webhook would make it

Containers of pods that ask for GPU memory get GAPLESS_TENANT and NVIDIA_VISIBLE_DEVICES, whose values the kubelet
takes from annotations that the binding writes. Invalid requests are refused. From Kubernetes 1.36 on, deploy/inject
does the same without a webhook.

Exit code: 0 success, 1 the pod of --pod is refused, 2 an error.")]
pub(crate) struct AdmitArgs {
    /// The address and port to serve
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    pub(crate) listen: std::net::SocketAddr,

    /// The certificate of this server. The files are read again when they change
    #[arg(long, value_name = "FILE", requires = "tls_key", required_unless_present = "pod")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// A pod as JSON (- for standard input): print it with its variables, and exit
    #[arg(long, value_name = "FILE", conflicts_with = "tls_cert")]
    pub(crate) pod: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet advise peaks.csv
  gapless fleet advise peaks.csv --gpu-memory 80GiB --format json

The columns are pod,group,gpus,requested_mib,peak_mib,status: a row for each finished pod, the memory of each GPU, and
whether the pod ended well (ok) or ran out of memory (oom). No recorded run would have failed with what is advised.

Exit code: 0 success, 2 an error.")]
pub(crate) struct AdviseArgs {
    /// The recorded peaks, as CSV
    pub(crate) file: PathBuf,

    /// The memory of a GPU, to tell how many pods could share one
    #[arg(long, value_name = "SIZE")]
    pub(crate) gpu_memory: Option<String>,

    #[arg(long, value_enum, default_value_t = AdviseFormat::Text)]
    pub(crate) format: AdviseFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AdviseFormat {
    Text,
    Json,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet place --nodes nodes.json
  echo '{\"op\": \"ask\", \"pod\": {\"name\": \"p\", \"gpus\": 1}}' |
    gapless fleet place --nodes nodes.json

Lines in: node, close, ask, free, find, restore, state, check; docs/fleet.md describes them.

Lines out: where a pod is placed, that it waits, or why it can never be placed. What is freed goes to those who wait,
and the answer names them. The command ends when its standard input does.

Exit code: 0 success, 2 an error.")]
pub(crate) struct PlaceArgs {
    /// Nodes to begin with: CSV or JSON, as for fleet sim
    #[arg(long, value_name = "FILE")]
    pub(crate) nodes: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet agent --once                             who was promised what, and uses how much
  gapless fleet agent --once --format json
  gapless fleet agent --in-cluster                            in a DaemonSet
  gapless fleet agent --bookings jobs.json --cdi-dir /etc/cdi
  gapless fleet agent --in-cluster --dra --cdi-dir DIR --dra-plugin DIR     for claims

The agent ends no process. A pod's processes are found by their cgroup. Tenants that are no pod's (Slurm, Ray) are
promised their share. With an API server it writes the node's GPUs to its annotations. A CDI file gives containers
GAPLESS_TENANT and NVIDIA_VISIBLE_DEVICES, if the runtime is told of its device: by the kubelet for claims, by
`podman run --device gapless.dev/pod=job-1` for bookings. If the kernel has the cgroup controller dmem, the agent sets
dmem.max too. Over-use is a line on standard error and a metric.

Exit code with --once: 0 nobody uses more than promised, 1 somebody does, 2 an error.")]
pub(crate) struct AgentArgs {
    /// Look once, print, and exit
    #[arg(long, conflicts_with = "listen")]
    pub(crate) once: bool,

    /// The output format with --once
    #[arg(long, value_enum, default_value_t = AgentFormat::Text)]
    pub(crate) format: AgentFormat,

    /// The address to serve /metrics on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9755")]
    pub(crate) listen: std::net::SocketAddr,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = super::live::seconds)]
    pub(crate) interval: f64,

    /// The name of this node [default: NODE_NAME, or the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// Promises from a file: [{\"id\": \"job-1\", \"gpus\": [0], \"bytes\": \"18GiB\"}]
    #[arg(long, value_name = "FILE")]
    pub(crate) bookings: Option<PathBuf>,

    /// Publish the GPUs as ResourceSlices too, for Dynamic Resource Allocation (Kubernetes 1.34 or later)
    #[arg(long)]
    pub(crate) dra: bool,

    /// Serve the kubelet as a driver for claims: its folder of plug-ins, such as /var/lib/kubelet/plugins_registry
    #[arg(long, value_name = "FOLDER", requires = "dra", requires = "cdi_dir")]
    pub(crate) dra_plugin: Option<PathBuf>,

    /// Write CDI files to this folder: for each pod with booked GPUs, and with --dra-plugin for each claim
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cdi_dir: Option<PathBuf>,

    /// The root of the cgroups
    #[arg(long, value_name = "FOLDER", default_value = "/sys/fs/cgroup", hide = true)]
    pub(crate) cgroups: PathBuf,

    /// Use the API server and the service account of this pod
    #[arg(long, conflicts_with_all = ["api", "ca", "token_file"])]
    pub(crate) in_cluster: bool,

    /// The API server: http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(crate) api: Option<String>,

    /// The authorities that sign the API server's certificate
    #[arg(long, value_name = "FILE", requires = "api")]
    pub(crate) ca: Option<PathBuf>,

    /// A file with a bearer token for the API server
    #[arg(long, value_name = "FILE", requires = "api")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet dra class | kubectl apply -f -
  gapless fleet dra slices                      this node's GPUs
  gapless fleet dra claims pod.json             a pod with a claim on a GPU")]
pub(crate) struct DraArgs {
    #[command(subcommand)]
    pub(crate) command: DraCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DraCommand {
    /// The DeviceClass that claims name
    #[command(after_help = "\
Examples:
  gapless fleet dra class | kubectl apply -f -")]
    Class,
    /// The ResourceSlices of this node, as `gapless fleet agent --dra` publishes them
    Slices(SlicesArgs),
    /// The ResourceClaimTemplates of pods with gapless.dev/gpu-memory, and the pods with claims instead
    Claims(ClaimsArgs),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fleet dra slices
  gapless fleet dra slices --node n1 --whole

The GPUs are those that the driver (NVML) reports. The owner and the generation are what a node would have that is
published for the first time; the agent fills in what is true.

Exit code: 0 success, 2 an error.")]
pub(crate) struct SlicesArgs {
    /// The name of this node [default: NODE_NAME, or the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// Leave out what needs the feature gate DRAConsumableCapacity: claims then take whole GPUs
    #[arg(long)]
    pub(crate) whole: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  kubectl create --dry-run=client -o json -f pod.yaml |
    gapless fleet dra claims - | kubectl apply -f -
  gapless fleet dra claims pod.json --whole

The manifest is JSON: a Pod, a workload with a template of pods, or a List of them. The result is a List: for each pod
with gapless.dev/gpu-memory or gapless.dev/gpus a ResourceClaimTemplate, and the manifest with a claim instead of the
annotations. Everything else is kept. A claim counts bytes, so gapless.dev/gpu-milli is refused.

Exit code: 0 success, 2 an error.")]
pub(crate) struct ClaimsArgs {
    /// The manifest; - is standard input
    pub(crate) manifest: PathBuf,

    /// For clusters without the feature gate DRAConsumableCapacity: claims take whole GPUs that are large enough
    #[arg(long)]
    pub(crate) whole: bool,

    /// A folder with traces of earlier runs, for gapless.dev/gpu-memory: auto and gapless.dev/trace
    #[arg(long, value_name = "FOLDER")]
    pub(crate) traces: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AgentFormat {
    Text,
    Json,
    Prometheus,
}
