//! Who and what plays: people and GPU models.

/// A person of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) login: &'static str,
    pub(super) full_name: &'static str,
    pub(super) uid: u32,
}

const fn person(login: &'static str, full_name: &'static str, uid: u32) -> Person {
    Person { login, full_name, uid }
}

/// The people of the lab; the one who watches is [`VIEWER`].
pub(super) const PEOPLE: [Person; 8] = [
    person("alice", "Alice Moreau", 1001),
    person("bob", "Bob Okafor", 1002),
    person("carol", "Carol Lindqvist", 1003),
    person("dmitri", "Dmitri Volkov", 1004),
    person("erika", "Erika Satō", 1005),
    person("fumi", "Fumi Tanaka", 1006),
    person("gustav", "Gustav Meyer", 1007),
    person("hana", "Hana Nováková", 1008),
];
pub(super) const ALICE: usize = 0;
pub(super) const BOB: usize = 1;
pub(super) const CAROL: usize = 2;
pub(super) const DMITRI: usize = 3;
pub(super) const ERIKA: usize = 4;
pub(super) const FUMI: usize = 5;
pub(super) const GUSTAV: usize = 6;
pub(super) const HANA: usize = 7;

/// The account that gpufleet logs in with; one of the hung jobs is this person's, so that it can be ended.
pub(super) const VIEWER: Person = PEOPLE[DMITRI];

const MIB: u64 = 1 << 20;

/// A kind of GPU.
#[derive(Debug, PartialEq)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) tag: &'static str,
    pub(super) memory_total_bytes: u64,
    pub(super) memory_reserved_bytes: u64,
    pub(super) power_limit_watts: f64,
    /// Power without a context.
    pub(super) idle_watts: f64,
    /// Power with a context that does nothing. Reported: H100 122 W, A100 80 W.
    pub(super) context_watts: f64,
    /// Power while a kernel spins on all SMs and reaches no memory. Reported for hung H100s: 100 to 152 W.
    pub(super) spin_watts: f64,
    pub(super) sm_max_mhz: u32,
    pub(super) memory_mhz: u32,
    pub(super) slowdown_celsius: i32,
    pub(super) pcie_generation: u8,
    pub(super) nvlinks: u8,
}

/// As in an HGX H100.
pub(super) static H100: Model = Model {
    name: "NVIDIA H100 80GB HBM3",
    tag: "h100",
    memory_total_bytes: 81_559 * MIB,
    memory_reserved_bytes: 551 * MIB,
    power_limit_watts: 700.0,
    idle_watts: 69.0,
    context_watts: 118.0,
    spin_watts: 104.0,
    sm_max_mhz: 1980,
    memory_mhz: 2619,
    slowdown_celsius: 89,
    pcie_generation: 5,
    nvlinks: 18,
};

/// As in an HGX A100.
pub(super) static A100: Model = Model {
    name: "NVIDIA A100-SXM4-80GB",
    tag: "a100",
    memory_total_bytes: 81_920 * MIB,
    memory_reserved_bytes: 635 * MIB,
    power_limit_watts: 400.0,
    idle_watts: 57.0,
    context_watts: 80.0,
    spin_watts: 78.0,
    sm_max_mhz: 1410,
    memory_mhz: 1593,
    slowdown_celsius: 92,
    pcie_generation: 4,
    nvlinks: 12,
};
