//! The CSV of `gpufleet status --csv`: one line per GPU and sample, in the style of `nvidia-smi --query-gpu=...
//! --format=csv,nounits -l`. docs/status-csv.md describes it.
//!
//! ```text
//! timestamp,host,index,name,state,utilization.gpu [%],memory.used [MiB],...
//! 2026-05-04T12:00:00.500Z,hgx-01,0,NVIDIA H100 80GB HBM3,in_use,97,76800,...
//! ```

use super::report::{GpuView, Report, owner_label};
use crate::config::did_you_mean;
use crate::fleet::{Host, HostId, Moment, Process};
use crate::wire::{GpuHealth, GpuReading, SafeText};
use std::collections::BTreeMap;

/// Written for an unknown value. pandas, R and DuckDB can read it as missing.
const MISSING: &str = "N/A";

const MIB: u64 = 1024 * 1024;

/// A column.
pub struct Column {
    /// The name, as in `nvidia-smi --help-query-gpu` if nvidia-smi has the column.
    pub name: &'static str,
    /// The unit in the header.
    pub unit: Option<&'static str>,
    /// The meaning, for the documentation.
    pub about: &'static str,
    /// Whether the column is written without `--columns`.
    pub is_default: bool,
    value: fn(&Line<'_>) -> Option<Value>,
}

/// The GPU and the time of one line.
struct Line<'a> {
    now: Moment,
    host: &'a Host,
    position: usize,
    gpu: &'a GpuView<'a>,
    /// The readings; empty if those of the host are not current.
    reading: &'a GpuReading,
    health: Option<&'a GpuHealth>,
    is_fresh: bool,
}

/// A value of a cell.
enum Value {
    /// A number or a word of gpufleet, which no spreadsheet takes for a formula.
    Plain(String),
    /// Text from a host or from hosts.toml.
    Foreign(String),
}

impl Value {
    fn plain(value: impl std::fmt::Display) -> Self {
        Self::Plain(value.to_string())
    }

    fn foreign(text: &str) -> Self {
        Self::Foreign(text.to_owned())
    }
}

fn mib(bytes: Option<u64>) -> Option<Value> {
    Some(Value::plain(bytes? / MIB))
}

fn fixed(value: Option<impl Into<f64>>, digits: usize) -> Option<Value> {
    let value: f64 = value?.into();
    value.is_finite().then(|| Value::Plain(format!("{value:.digits$}")))
}

fn mib_per_second(bytes: Option<f64>) -> Option<Value> {
    fixed(bytes.map(|bytes| bytes / MIB as f64), 1)
}

/// Declares the columns. `*` marks those that are written without `--columns`.
macro_rules! columns {
    ($($name:literal $([$unit:literal])? $(* $default:ident)?, $value:expr, $about:literal;)*) => {
        /// All columns, in the order of the documentation.
        pub const ALL: &[Column] = &[$(Column {
            name: $name,
            unit: columns!(@unit $($unit)?),
            about: $about,
            is_default: columns!(@default $($default)?),
            value: $value,
        }),*];
    };
    (@unit $unit:literal) => { Some($unit) };
    (@unit) => { None };
    (@default default) => { true };
    (@default) => { false };
}

columns! {
    "timestamp" *default, |line| timestamp(line.now).map(Value::Plain),
        "Time of the line, RFC 3339 in UTC. nvidia-smi writes local time.";
    "host" *default, |line| Some(Value::foreign(line.host.name())), "Display name of the host.";
    "host.state", |line| Some(Value::plain(line.host.link.word())), "`connecting`, `live`, `stale`, `down` or `needs_user`.";
    "sample.age" ["s"], |line| fixed(line.host.age(line.now).map(|age| age.as_secs_f64()), 1),
        "Age of the last readings of the host.";
    "group", |line| Some(Value::foreign(line.host.config.group.as_ref()?)), "Group of the host in hosts.toml.";
    "index" *default, |line| Some(Value::plain(line.gpu.info.index)), "Index of the GPU in NVML.";
    "uuid", |line| Some(Value::foreign(line.gpu.info.uuid.as_ref()?)), "UUID of the GPU.";
    "name" *default, |line| Some(Value::foreign(line.gpu.info.name.as_ref()?)), "Product name.";
    "pci.bus_id", |line| Some(Value::foreign(line.gpu.info.pci_bus_id.as_ref()?)), "PCI bus id.";
    "driver_version", |line| Some(Value::foreign(line.host.inventory.as_ref()?.driver_version.as_ref()?)), "Version of the driver.";
    "mig.mode.current", |line| Some(Value::plain(if line.gpu.info.mig_enabled? { "Enabled" } else { "Disabled" })),
        "`Enabled` or `Disabled`.";
    "mig.parent_uuid", |line| Some(Value::foreign(line.gpu.info.mig_parent_uuid.as_ref()?)),
        "UUID of the GPU that a MIG instance is part of.";
    "state" *default, |line| Some(Value::plain(line.gpu.state.json_word())),
        "`free`, `unused`, `idle`, `waiting`, `in_use`, `hung`, `fault` or `unknown`, as in docs/status-json.md.";
    "utilization.gpu" ["%"] *default, |line| Some(Value::plain(line.reading.utilization_percent?)),
        "Share of time in which a kernel ran.";
    "utilization.memory" ["%"], |line| Some(Value::plain(line.reading.memory_utilization_percent?)),
        "Share of time in which memory was read or written.";
    "utilization.encoder" ["%"], |line| Some(Value::plain(line.reading.encoder_percent?)), "Encoder utilization.";
    "utilization.decoder" ["%"], |line| Some(Value::plain(line.reading.decoder_percent?)), "Decoder utilization.";
    "memory.used" ["MiB"] *default, |line| mib(line.reading.memory_used_bytes), "Memory in use.";
    "memory.reserved" ["MiB"], |line| mib(line.reading.memory_reserved_bytes), "Memory that the driver reserves.";
    "memory.total" ["MiB"] *default, |line| mib(line.gpu.info.memory_total_bytes), "Total memory.";
    "temperature.gpu" *default, |line| Some(Value::plain(line.reading.temperature_celsius?)), "Temperature, degrees Celsius.";
    "temperature.memory", |line| Some(Value::plain(line.reading.memory_temperature_celsius?)),
        "Temperature of the memory, degrees Celsius.";
    "power.draw" ["W"] *default, |line| fixed(line.reading.power_watts, 2), "Power draw.";
    "power.draw.average" ["W"], |line| fixed(line.reading.power_mean_watts, 2),
        "Mean power draw since the previous sample.";
    "enforced.power.limit" ["W"] *default,
        |line| fixed(line.reading.power_limit_watts.or(line.gpu.info.power_limit_watts), 2),
        "Power limit that the driver enforces.";
    "energy" ["J"], |line| fixed(line.reading.energy_joules, 0), "Energy since the driver was loaded.";
    "clocks.current.graphics" ["MHz"], |line| Some(Value::plain(line.reading.clock_graphics_mhz?)), "Graphics clock.";
    "clocks.current.sm" ["MHz"], |line| Some(Value::plain(line.reading.clock_sm_mhz?)), "SM clock.";
    "clocks.current.memory" ["MHz"], |line| Some(Value::plain(line.reading.clock_memory_mhz?)), "Memory clock.";
    "clocks_event_reasons.active", |line| Some(Value::plain(format!("{:#018x}", line.reading.clocks_event_reasons?))),
        "Reasons for reduced clocks, the bit mask of NVML.";
    "fan.speed" ["%"], |line| Some(Value::plain(line.reading.fan_percent?)), "Speed of the fastest fan.";
    "pstate", |line| Some(Value::plain(format!("P{}", line.reading.performance_state?))),
        "Performance state, `P0` (fastest) to `P15`.";
    "pcie.link.gen.current", |line| Some(Value::plain(line.reading.pcie_generation?)), "PCIe generation in use.";
    "pcie.link.width.current", |line| Some(Value::plain(line.reading.pcie_width?)), "PCIe lanes in use.";
    "pcie.rx" ["MiB/s"], |line| mib_per_second(line.reading.pcie_receive_bytes_per_second),
        "Data rate from the host over PCIe.";
    "pcie.tx" ["MiB/s"], |line| mib_per_second(line.reading.pcie_transmit_bytes_per_second),
        "Data rate to the host over PCIe.";
    "nvlink.rx" ["MiB/s"], |line| mib_per_second(line.reading.nvlink_receive_bytes_per_second),
        "Data rate from other GPUs over all NVLinks.";
    "nvlink.tx" ["MiB/s"], |line| mib_per_second(line.reading.nvlink_transmit_bytes_per_second),
        "Data rate to other GPUs over all NVLinks.";
    "sm.activity" ["%"], |line| fixed(line.reading.sm_activity_percent, 1),
        "Share of time in which an SM was busy, mean over all SMs (Hopper and newer).";
    "sm.occupancy" ["%"], |line| fixed(line.reading.sm_occupancy_percent, 1), "Resident warps, of the maximum.";
    "tensor.activity" ["%"], |line| fixed(line.reading.tensor_activity_percent, 1),
        "Share of time in which tensor cores were busy.";
    "dram.bandwidth" ["%"], |line| fixed(line.reading.dram_bandwidth_percent, 1), "Memory bandwidth in use.";
    "ecc.errors.corrected.volatile.total", |line| Some(Value::plain(line.health?.ecc_corrected_volatile?)),
        "Corrected ECC errors since the driver was loaded.";
    "ecc.errors.uncorrected.volatile.total", |line| Some(Value::plain(line.health?.ecc_uncorrectable_volatile?)),
        "Uncorrectable ECC errors since the driver was loaded.";
    "processes", |line| Some(Value::plain(processes(line)?.count())), "Number of processes on the GPU.";
    "jobs", |line| Some(list(processes(line)?.map(|process| SafeText::from(process.info.job.to_string())))),
        "Jobs of these processes, as in docs/status-json.md, joined with `, `.";
    "users" *default, users, "Users of these processes, most GPU memory first, joined with `, `; empty without a process.";
}

/// The columns of a run, in their order.
#[derive(Clone)]
pub struct Columns(Vec<&'static Column>);

impl Default for Columns {
    fn default() -> Self {
        Self(ALL.iter().filter(|column| column.is_default).collect())
    }
}

impl std::fmt::Debug for Columns {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|column| column.name)).finish()
    }
}

impl Columns {
    /// Parses names separated by commas; `all` stands for every column.
    ///
    /// # Errors
    /// A name is unknown or the list is empty: the message with a hint.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut columns = Vec::new();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if word == "all" {
                columns.extend(ALL);
                continue;
            }
            // The header may be given as it is written: `memory.used [MiB]`.
            let name = word.split(" [").next().unwrap_or(word);
            let names = ALL.iter().map(|column| column.name);
            let column = ALL.iter().find(|column| column.name == name).ok_or_else(|| {
                let hint = did_you_mean(name, names.clone())
                    .unwrap_or_else(|| format!("the columns are {}", names.collect::<Vec<_>>().join(", ")));
                format!("there is no column `{}`; {hint}", SafeText::new(name))
            })?;
            columns.push(column);
        }
        if columns.is_empty() { Err("write names such as host,index,power.draw".to_owned()) } else { Ok(Self(columns)) }
    }

    /// The header line.
    ///
    /// # Errors
    /// The encoder fails, which it does not in memory.
    pub fn header(&self) -> Result<String, ::csv::Error> {
        encode([self.0.iter().map(|column| match column.unit {
            Some(unit) => format!("{} [{unit}]", column.name),
            None => column.name.to_owned(),
        })])
    }

    /// One line per GPU: of all hosts, or of one. MIG instances have a line each, after that of their GPU.
    ///
    /// # Errors
    /// The encoder fails, which it does not in memory.
    pub fn lines(&self, report: &Report<'_>, only: Option<HostId>) -> Result<String, ::csv::Error> {
        let mut records = Vec::new();
        for host in report.fleet.hosts().iter().filter(|host| only.is_none_or(|id| host.id == id)) {
            let is_fresh = host.is_fresh(report.now);
            let no_reading = GpuReading::default();
            for (position, gpu) in report.gpus(host).iter().enumerate() {
                let line = Line {
                    now: report.now,
                    host,
                    position,
                    gpu,
                    reading: if is_fresh { gpu.reading } else { &no_reading },
                    health: gpu.health.filter(|_| is_fresh),
                    is_fresh,
                };
                let cell = |column: &&Column| match (column.value)(&line) {
                    None => MISSING.to_owned(),
                    Some(Value::Plain(text)) => text,
                    Some(Value::Foreign(text)) => without_formula(&text),
                };
                records.push(self.0.iter().map(cell).collect::<Vec<_>>());
            }
        }
        encode(records)
    }
}

/// Encodes records with the quoting of RFC 4180 and `\n` at the end of each line.
pub(super) fn encode<R: IntoIterator<Item = String>>(
    records: impl IntoIterator<Item = R>,
) -> Result<String, ::csv::Error> {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    for record in records {
        writer.write_record(record.into_iter().collect::<Vec<_>>())?;
    }
    let bytes = writer.into_inner().map_err(|error| ::csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Puts an apostrophe before a character that makes a spreadsheet read a cell as a formula (`=`, `+`, `-`, `@` and their
/// full-width forms), at the beginning of a text and after each `;`, which separates cells in many countries. Tabs and
/// line breaks do not occur in safe text. Source: OWASP, "CSV Injection".
pub(super) fn without_formula(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut begins_cell = true;
    for character in text.chars() {
        if begins_cell && matches!(character, '=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠') {
            safe.push('\'');
        }
        begins_cell = character == ';' || begins_cell && (character.is_whitespace() || character == '"');
        safe.push(character);
    }
    safe
}

/// RFC 3339 in UTC with milliseconds; `None` if the year is out of range.
fn timestamp(moment: Moment) -> Option<String> {
    let milliseconds = i64::try_from(moment.unix.as_millis()).ok()?;
    Some(format!("{:.3}", jiff::Timestamp::from_millisecond(milliseconds).ok()?))
}

/// The processes on the GPU of a line, or `None` if they are unknown.
fn processes<'a>(line: &'a Line<'a>) -> Option<impl Iterator<Item = &'a Process>> {
    let are_known = line.is_fresh && line.reading.processes_unknown != Some(true) && line.reading.error.is_none();
    are_known.then(|| line.host.processes().filter(|process| process.usage_on(line.position).is_some()))
}

fn users(line: &Line<'_>) -> Option<Value> {
    let mut memory: BTreeMap<SafeText, u64> = BTreeMap::new();
    for process in processes(line)? {
        let bytes = process.usage_on(line.position).and_then(|usage| usage.gpu_memory_bytes).unwrap_or(0);
        let held = memory.entry(owner_label(process)).or_default();
        *held = held.saturating_add(bytes);
    }
    let mut users: Vec<_> = memory.into_iter().collect();
    users.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    Some(list(users.into_iter().map(|(user, _)| user)))
}

/// Joins different texts with `, `.
fn list(texts: impl Iterator<Item = SafeText>) -> Value {
    let mut different: Vec<SafeText> = Vec::new();
    for text in texts {
        if !different.contains(&text) {
            different.push(text);
        }
    }
    let texts: Vec<&str> = different.iter().map(SafeText::as_str).collect();
    Value::foreign(&texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use std::fmt::Write as _;

    fn read(text: &str) -> Vec<Vec<String>> {
        let mut reader = ::csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
        reader.records().map(|record| record.expect("a record").iter().map(str::to_owned).collect()).collect()
    }

    fn lines(columns: &str) -> Vec<Vec<String>> {
        let columns = Columns::parse(columns).expect("columns");
        let mut text = String::new();
        fixture::with_report(|report| text = columns.lines(report, None).expect("encodes"));
        read(&text)
    }

    #[test]
    fn a_line_per_gpu_has_the_values_of_nvidia_smi() {
        let mut text = Columns::default().header().expect("encodes");
        fixture::with_report(|report| text += &Columns::default().lines(report, Some(HostId(0))).expect("encodes"));
        assert_eq!(
            text,
            "timestamp,host,index,name,state,utilization.gpu [%],memory.used [MiB],memory.total [MiB],temperature.gpu,\
             power.draw [W],enforced.power.limit [W],users\n\
             2026-05-04T12:00:00.500Z,hgx-01,0,NVIDIA H100 80GB HBM3,in_use,97,76800,81920,71,512.40,700.00,\"alice, uid 0\"\n\
             2026-05-04T12:00:00.500Z,hgx-01,1,NVIDIA H100 80GB HBM3,hung,100,71680,81920,44,118.00,700.00,\"alice, ?\"\n\
             2026-05-04T12:00:00.500Z,hgx-01,2,NVIDIA H100 80GB HBM3,fault,N/A,N/A,81920,N/A,N/A,700.00,N/A\n\
             2026-05-04T12:00:00.500Z,hgx-01,3,NVIDIA H100 80GB HBM3,free,N/A,512,81920,30,70.00,700.00,\n"
        );
    }

    #[test]
    fn readings_that_are_not_current_are_unknown() {
        let all = lines("host,host.state,index,name,state,utilization.gpu,users");
        let stale: Vec<_> = all.iter().filter(|line| line[0] == "new-key" || line[0] == "gone-quiet").collect();
        assert_eq!(stale, [&["gone-quiet", "stale", "0", "NVIDIA RTX A6000", "unknown", "N/A", "N/A"]]);
    }

    #[test]
    fn each_column_can_be_selected_and_every_line_has_all_of_them() {
        let all = lines("all");
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|line| line.len() == ALL.len()));
        let of = |name: &str| all[0][ALL.iter().position(|column| column.name == name).expect("a column")].clone();
        assert_eq!(
            (of("clocks_event_reasons.active"), of("processes")),
            ("0x0000000000000004".to_owned(), "2".to_owned())
        );
        assert_eq!((of("uuid"), of("driver_version")), ("GPU-0".to_owned(), "570.86.15".to_owned()));
        assert_eq!((of("sample.age"), of("group")), ("0.5".to_owned(), "rack 7".to_owned()));
        assert!(of("jobs").contains("slurm:3385"), "{}", of("jobs"));
        let header = Columns::parse("index, memory.used [MiB],index").map(|columns| columns.header().expect("encodes"));
        assert_eq!(header.as_deref(), Ok("index,memory.used [MiB],index\n"));
    }

    #[test]
    fn unknown_columns_are_rejected_with_a_suggestion() {
        let error = |text: &str| Columns::parse(text).expect_err("an error");
        assert_eq!(error("host,power.drw"), "there is no column `power.drw`; did you mean `power.draw`?");
        assert_eq!(error(" ,"), "write names such as host,index,power.draw");
        let unlike = error("\x1b[2J");
        assert!(
            unlike.starts_with("there is no column `␛[2J`; the columns are timestamp, host, host.state, "),
            "{unlike}"
        );
    }

    #[test]
    fn text_of_hosts_is_quoted_and_never_a_formula() {
        for (text, safe) in [
            ("alice", "alice"),
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1", "'+1"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("  =1", "  '=1"),
            ("\"=1", "\"'=1"),
            ("a;=1; \"@x", "a;'=1; \"'@x"),
            ("a=1, b-2", "a=1, b-2"),
            ("＝1", "'＝1"),
            ("", ""),
        ] {
            assert_eq!(without_formula(text), safe);
        }
        let record = ["a,b", "say \"hi\"", "two\nlines", "plain", ""].map(str::to_owned);
        let text = encode([record.clone()]).expect("encodes");
        assert_eq!(text, "\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\",plain,\n");
        assert_eq!(read(&text), [record.to_vec()]);
    }

    #[test]
    fn numbers_that_are_not_finite_are_unknown() {
        assert!(fixed(Some(f64::NAN), 1).is_none() && fixed(Some(f32::INFINITY), 1).is_none());
    }

    #[test]
    fn the_document_lists_every_column() {
        const BEGIN: &str = "<!-- The table below is generated from src/output/csv.rs: GPUFLEET_WRITE_DOCS=1 cargo test --lib the_document -->\n";
        let (head, old) = include_str!("../../docs/status-csv.md").split_once(BEGIN).expect("the mark");
        let mut table = "| column | in the header | without `--columns` | meaning |\n|---|---|---|---|\n".to_owned();
        for column in ALL {
            let unit = column.unit.map(|unit| format!("`[{unit}]`")).unwrap_or_default();
            let default = if column.is_default { "yes" } else { "" };
            writeln!(table, "| `{}` | {unit} | {default} | {} |", column.name, column.about).expect("a string");
        }
        if std::env::var_os("GPUFLEET_WRITE_DOCS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/status-csv.md");
            std::fs::write(path, format!("{head}{BEGIN}\n{table}")).expect("writes");
            return;
        }
        assert_eq!(old.trim(), table.trim(), "write it anew as its comment says");
    }
}
