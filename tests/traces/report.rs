//! The program: prints the report, or writes the cases as recordings.

use super::case_file::{Case, cases};
use super::case_recording::{CaseRecording, Variant};
use super::evaluate::{CaseResult, evaluate, is_allowed, replay_case, runs_in};
use super::healthy;
use gpufleet::diagnosis::proof::Outcome;
use gpufleet::diagnosis::{RuleId, RuleTopic, Severity};
use gpufleet::fleet::recording::encode;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const HELP: &str = "\
tests/diagnosis-report [OPTIONS] [CASE]...
Replays the labelled cases of tests/traces and healthy days, and prints the precision and recall of the rules.

  CASE              only cases whose name contains one of these words
  --seed N          the first seed of the cases [default: 1]
  --seeds N         number of seeds [default: 3]
  --variant WORD    only plain, drops, gaps or late
  --host-days N     simulated host-days of healthy mixed work [default: 100; 0 with CASE]
  --healthy-seed N  the first seed of the healthy days [default: 1]
  --write DIR       write the cases as recordings into DIR instead, one file per case, variant and seed
  --write-healthy   with --write: also the healthy days
  --list            print the names of the cases
  --quiet           omit the deviations of each case
";

/// The parsed command line.
#[derive(Debug)]
struct Options {
    name_filters: Vec<String>,
    seed: u64,
    seeds: u64,
    variant: Option<Variant>,
    host_days: Option<usize>,
    healthy_seed: u64,
    write: Option<PathBuf>,
    write_healthy: bool,
    list: bool,
    quiet: bool,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            name_filters: Vec::new(),
            seed: 1,
            seeds: 3,
            variant: None,
            host_days: None,
            healthy_seed: 1,
            write: None,
            write_healthy: false,
            list: false,
            quiet: false,
        };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--seed" => options.seed = number(&value()?)?,
                "--seeds" => options.seeds = number(&value()?)?,
                "--host-days" => options.host_days = Some(number(&value()?)? as usize),
                "--healthy-seed" => options.healthy_seed = number(&value()?)?,
                "--write" => options.write = Some(value()?.into()),
                "--write-healthy" => options.write_healthy = true,
                "--list" => options.list = true,
                "--quiet" => options.quiet = true,
                "--variant" => {
                    let word = value()?;
                    let variant = Variant::ALL.into_iter().find(|variant| variant.word() == word);
                    options.variant = Some(variant.ok_or(format!("no variant `{word}`"))?);
                }
                option if option.starts_with('-') => return Err(format!("unknown option `{option}`")),
                word => options.name_filters.push(word.to_owned()),
            }
        }
        Ok(options)
    }

    fn cases(&self) -> Vec<Case> {
        let is_wanted =
            |case: &Case| self.name_filters.is_empty() || self.name_filters.iter().any(|word| case.name.contains(word));
        cases().into_iter().filter(is_wanted).collect()
    }

    /// Every case in every selected variant with every seed.
    fn runs<'a>(&self, cases: &'a [Case]) -> Vec<(&'a Case, Variant, u64)> {
        let mut runs = Vec::new();
        for case in cases {
            for variant in Variant::ALL {
                if self.variant.is_some_and(|only| only != variant) || !runs_in(case, variant) {
                    continue;
                }
                runs.extend((self.seed..self.seed + self.seeds).map(|seed| (case, variant, seed)));
            }
        }
        runs
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

/// Runs the command line.
pub(crate) fn run() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{HELP}");
        return;
    }
    let options = match Options::parse(arguments.into_iter()) {
        Ok(options) => options,
        Err(error) => {
            eprint!("tests/diagnosis-report: {error}\n\n{HELP}");
            std::process::exit(2);
        }
    };
    let cases = options.cases();
    if cases.is_empty() {
        eprintln!("tests/diagnosis-report: no case name contains this word; --list prints the names");
        std::process::exit(2);
    }
    if options.list {
        let names = cases.iter().map(|case| format!("{:3}  {}\n", case.trace, case.name));
        // The reader may exit early (`| head`).
        let _ignored = std::io::stdout().write_all(names.collect::<String>().as_bytes());
    } else if let Some(directory) = &options.write {
        write(&options, &cases, directory);
    } else {
        let is_good = report(&options, &cases);
        std::process::exit(i32::from(!is_good));
    }
}

/// Applies `work` to each item on all cores and returns the results in the order of the items.
fn map_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, item)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, items.get(index)?)))
                {
                    let result = work(item);
                    done.lock().expect("no thread panicked").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panicked");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn write(options: &Options, cases: &[Case], directory: &PathBuf) {
    fs::create_dir_all(directory).unwrap_or_else(|error| panic!("cannot create {}: {error}", directory.display()));
    let mut files: Vec<(Case, Variant, u64)> =
        options.runs(cases).into_iter().map(|(case, variant, seed)| (case.clone(), variant, seed)).collect();
    if options.write_healthy {
        let fleets = options.host_days.unwrap_or(healthy::HOSTS).div_ceil(healthy::HOSTS) as u64;
        let seeds = options.healthy_seed..options.healthy_seed + fleets;
        files.extend(seeds.map(|seed| (healthy::fleet(seed, 1440.0), Variant::Plain, seed)));
    }
    for (case, variant, seed) in &files {
        let path = directory.join(format!("{}.{variant}.{seed}.jsonl", case.name));
        let file = fs::File::create(&path).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        let mut file = std::io::BufWriter::new(file);
        for line in CaseRecording::new(case, *variant, *seed).flatten() {
            file.write_all(&encode(&line).expect("encodes")).expect("writes");
        }
        file.flush().expect("writes");
    }
    println!("{} recordings in {}: gpufleet findings --replay FILE", files.len(), directory.display());
}

/// Counts of one rule, or of all rules.
#[derive(Debug, Default, Clone)]
struct RuleCounts {
    expected: usize,
    found: usize,
    true_positives: usize,
    false_positives: usize,
    /// Times to detect, in seconds.
    after: Vec<f64>,
    /// False findings on healthy days.
    healthy: usize,
}

impl RuleCounts {
    fn add(&mut self, other: &Self) {
        self.expected += other.expected;
        self.found += other.found;
        self.true_positives += other.true_positives;
        self.false_positives += other.false_positives;
        self.healthy += other.healthy;
        self.after.extend(&other.after);
    }

    fn line(&self, name: &str, host_days: f64) -> String {
        let share = |part: usize, whole: usize| {
            if whole == 0 { "-".to_owned() } else { format!("{:.3}", part as f64 / whole as f64) }
        };
        let median = match self.after.len() {
            0 => "-".to_owned(),
            length => {
                let mut after = self.after.clone();
                after.sort_by(f64::total_cmp);
                format!("{:.1} min", after[length / 2] / 60.0)
            }
        };
        let healthy = if host_days > 0.0 { format!("{:.3}", self.healthy as f64 / host_days) } else { "-".to_owned() };
        format!(
            "{name:<22} {:>9} {:>7} {:>7} {:>6} {:>6} {:>10} {:>12}",
            share(self.true_positives, self.true_positives + self.false_positives),
            share(self.found, self.expected),
            self.expected,
            self.true_positives,
            self.false_positives,
            median,
            healthy
        )
    }
}

/// Prints the report. Returns whether the goals for precision, recall and false findings are met.
fn report(options: &Options, cases: &[Case]) -> bool {
    let runs = options.runs(cases);
    let results = map_parallel(&runs, |(case, variant, seed)| evaluate(case, *variant, *seed));
    let mut rules: BTreeMap<String, RuleCounts> = BTreeMap::new();
    for result in &results {
        count(result, &mut rules);
    }
    let days = options.host_days.unwrap_or(if options.name_filters.is_empty() { 100 } else { 0 });
    let fleets: Vec<u64> =
        (0..days.div_ceil(healthy::HOSTS) as u64).map(|fleet| options.healthy_seed + fleet).collect();
    let host_days = (fleets.len() * healthy::HOSTS) as f64;
    let found = map_parallel(&fleets, |seed| {
        let case = healthy::fleet(*seed, 1440.0);
        let run = replay_case(&case, Variant::Plain, *seed);
        (*seed, (case, run))
    });
    let mut on_healthy = Vec::new();
    for (seed, (case, run)) in &found {
        for fired in run.fired.iter().filter(|fired| fired.severity >= Severity::Warn && !is_allowed(case, fired)) {
            rules.entry(fired.rule.to_owned()).or_default().healthy += 1;
            on_healthy.push(format!(
                "healthy-{seed}: {} {} at {:.1} min on {}: {}",
                fired.rule,
                fired.severity.word(),
                fired.at / 60.0,
                fired.host,
                fired.sentence
            ));
        }
    }
    let failed: Vec<&CaseResult> = results.iter().filter(|result| !result.problems.is_empty()).collect();
    if !options.quiet {
        for result in &failed {
            println!("{} ({}, seed {})", result.case, result.variant, result.seed);
            for problem in &result.problems {
                println!("  {problem}");
            }
        }
        for line in &on_healthy {
            println!("{line}");
        }
        println!();
    }
    let mut all = RuleCounts::default();
    println!(
        "{:<22} {:>9} {:>7} {:>7} {:>6} {:>6} {:>10} {:>12}",
        "rule", "precision", "recall", "wanted", "right", "false", "detects in", "false/day"
    );
    for (rule, counts) in &rules {
        println!("{}", counts.line(rule, host_days));
        all.add(counts);
    }
    println!("{}", all.line("all", host_days));
    for (name, topic) in [
        ("stuck jobs", RuleTopic::StuckJob),
        ("other jobs", RuleTopic::Job),
        ("hosts", RuleTopic::Host),
        ("hardware", RuleTopic::Hardware),
    ] {
        let mut family = RuleCounts::default();
        let is_in = |rule: &str| RuleId::from_word(rule).is_some_and(|rule| rule.info().topic == topic);
        for (_, counts) in rules.iter().filter(|(rule, _)| is_in(rule)) {
            family.add(counts);
        }
        println!("{}", family.line(name, host_days));
    }
    print_verdicts(&results);
    println!(
        "\n{} cases in {} runs (seeds {} to {}), {} with deviations; {host_days:.0} healthy host-days (seeds {} to {})",
        cases.len(),
        runs.len(),
        options.seed,
        options.seed + options.seeds - 1,
        failed.len(),
        options.healthy_seed,
        options.healthy_seed + fleets.len().max(1) as u64 - 1
    );
    let share = |part: usize, whole: usize| if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
    let a_day = if host_days > 0.0 { all.healthy as f64 / host_days } else { 0.0 };
    let is_good = share(all.true_positives, all.true_positives + all.false_positives) >= 0.98
        && share(all.found, all.expected) >= 0.95
        && a_day <= 0.05;
    println!(
        "{a_day:.3} false findings per host-day are {:.1} per 1,000 host-hours; goals (precision 0.98, recall 0.95, 0.05 false \
         findings per host-day): {}",
        1000.0 / 24.0 * a_day,
        if is_good { "met" } else { "not met" }
    );
    is_good
}

/// Prints how the verdicts of `gpufleet why` compare with the cases. A verdict is wanted for each own job that hangs and that a
/// rule has found, and false about a job of a case without a hang.
fn print_verdicts(results: &[CaseResult]) {
    let verdicts = || results.iter().flat_map(|result| &result.verdicts);
    println!("\nverdicts of examinations, without and with the likely ones");
    for (name, outcomes) in
        [("proven", &[Outcome::Proven][..]), ("proven or likely", &[Outcome::Proven, Outcome::Likely])]
    {
        let mut counts = RuleCounts::default();
        for verdict in verdicts() {
            let is_hang = outcomes.contains(&verdict.outcome);
            counts.expected += usize::from(verdict.hangs_for.is_some());
            counts.found += usize::from(is_hang && verdict.hangs_for.is_some());
            counts.false_positives += usize::from(is_hang && verdict.hangs_for.is_none());
            counts.after.extend(verdict.hangs_for.filter(|_| is_hang));
        }
        counts.true_positives = counts.found;
        println!("{}", counts.line(name, 0.0));
    }
    let waits: Vec<Option<f64>> = results.iter().flat_map(|result| &result.waits).copied().collect();
    let within = |seconds: f64| waits.iter().flatten().filter(|wait| **wait <= seconds).count();
    println!(
        "{} right warnings about own jobs that hang: {} with a verdict from the start, {} within 60 s, {} without one",
        waits.len(),
        within(0.0),
        within(60.0),
        waits.iter().filter(|wait| wait.is_none()).count()
    );
    let healthy = verdicts().filter(|verdict| verdict.hangs_for.is_none()).count();
    println!("{healthy} examinations of jobs that do not hang");
}

fn count(result: &CaseResult, rules: &mut BTreeMap<String, RuleCounts>) {
    for wanted in &result.expected {
        let counts = rules.entry(wanted.rule.clone()).or_default();
        counts.expected += 1;
        counts.found += usize::from(wanted.after.is_some());
        // A rule that rises in severity is detected when it first fires.
        let is_first =
            result.expected.iter().all(|other| other.rule != wanted.rule || other.severity >= wanted.severity);
        counts.after.extend(wanted.after.filter(|_| is_first));
    }
    for right in &result.true_positives {
        rules.entry(right.rule.to_owned()).or_default().true_positives += 1;
    }
    for wrong in &result.false_positives {
        rules.entry(wrong.rule.to_owned()).or_default().false_positives += 1;
    }
}
