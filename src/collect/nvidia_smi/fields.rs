//! The fields of `nvidia-smi --query-gpu` that the installed version knows.

/// Fields that every `nvidia-smi` of the last ten years supports.
const BASIC: [&str; 14] = [
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "utilization.memory",
    "temperature.gpu",
    "power.draw",
    "enforced.power.limit",
    "fan.speed",
    "pstate",
];

/// Further fields that the versions of R418 to R470 support.
const SINCE_R418: [&str; 11] = [
    "temperature.memory",
    "power.max_limit",
    "clocks.gr",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.gr",
    "clocks.max.sm",
    "clocks.max.mem",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "clocks_throttle_reasons.active",
];

/// Further fields, in the order in which they were added: MIG (R450), reserved memory (R510), the power of this moment
/// (R530) and the new name of the reasons for low clocks (R535).
const LATER: [&str; 4] = ["mig.mode.current", "memory.reserved", "power.draw.instant", "clocks_event_reasons.active"];

/// Limit of fields that are left out because the program names them as unknown. Each costs a run of `nvidia-smi`.
const MAX_REFUSED: usize = 12;

/// The fields to query. Starts with all of them, and becomes shorter when `nvidia-smi` refuses one.
#[derive(Debug, Clone)]
pub(super) struct FieldList {
    fields: Vec<&'static str>,
    refused: Vec<&'static str>,
}

impl Default for FieldList {
    fn default() -> Self {
        Self { fields: [&BASIC[..], &SINCE_R418, &LATER].concat(), refused: Vec::new() }
    }
}

impl FieldList {
    /// The shortest list, for tests of the parser.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn basic() -> Self {
        Self { fields: BASIC.to_vec(), refused: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The column of a field.
    pub(super) fn column(&self, field: &str) -> Option<usize> {
        self.fields.iter().position(|known| *known == field)
    }

    /// The argument of `--query-gpu`.
    pub(super) fn to_argument(&self) -> String {
        self.fields.join(",")
    }

    /// Leaves out the field that this output names as unknown, or all newer fields if it names none. Returns `false` if
    /// there is nothing left to leave out.
    pub(super) fn refuse(&mut self, output: &[String]) -> bool {
        let named = output.iter().find_map(|line| refused_field(line)).and_then(|field| self.column(field));
        match named {
            Some(column) if self.refused.len() < MAX_REFUSED && self.fields.len() > 2 => {
                self.refused.push(self.fields.remove(column));
                true
            }
            _ => self.shorten(),
        }
    }

    /// Takes the next shorter list.
    fn shorten(&mut self) -> bool {
        let without = |newer: &[&str]| {
            self.fields.iter().copied().filter(|field| !newer.contains(field)).collect::<Vec<&'static str>>()
        };
        let shorter = [without(&LATER), without(&[&SINCE_R418[..], &LATER].concat())];
        let next = shorter.into_iter().find(|fields| fields.len() < self.fields.len() && !fields.is_empty());
        let is_shorter = next.is_some();
        self.fields = next.unwrap_or_else(|| std::mem::take(&mut self.fields));
        is_shorter
    }
}

/// The field in `Field "xyz" is not a valid field to query.`
pub(super) fn refused_field(line: &str) -> Option<&str> {
    let (field, rest) = line.split_once("Field \"")?.1.split_once('"')?;
    rest.starts_with(" is not a valid field").then_some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(field: &str) -> Vec<String> {
        vec![format!("Field \"{field}\" is not a valid field to query."), String::new()]
    }

    #[test]
    fn an_unknown_field_is_left_out_and_the_others_stay() {
        let mut fields = FieldList::default();
        assert!(fields.refuse(&message("power.draw.instant")));
        assert_eq!((fields.len(), fields.column("power.draw.instant")), (28, None));
        assert!(fields.column("memory.reserved").is_some() && fields.column("clocks.sm").is_some());
        assert!(fields.refuse(&message("fan.speed")), "also one of the basic fields");
        assert!(fields.to_argument().starts_with("index,uuid,name,pci.bus_id,"));
    }

    #[test]
    fn a_refusal_without_a_name_gives_the_lists_of_older_drivers() {
        let mut fields = FieldList::default();
        let unnamed = vec!["Invalid combination of input arguments.".to_owned()];
        assert!(fields.refuse(&unnamed));
        assert_eq!(fields.to_argument(), [&BASIC[..], &SINCE_R418].concat().join(","), "R418 to R470");
        assert!(fields.refuse(&unnamed));
        assert_eq!(fields.to_argument(), BASIC.join(","));
        assert!(!fields.refuse(&unnamed), "there is no shorter list");
        assert_eq!(fields.len(), BASIC.len());
    }

    #[test]
    fn fields_are_left_out_one_by_one_up_to_a_limit() {
        let mut fields = FieldList::default();
        for field in &SINCE_R418 {
            assert!(fields.refuse(&message(field)));
        }
        assert!(fields.refuse(&message("pstate")));
        assert!(fields.column("memory.reserved").is_some(), "newer fields stay as long as others are named");
        assert!(fields.refuse(&message("fan.speed")));
        assert_eq!((fields.column("memory.reserved"), fields.len()), (None, BASIC.len() - 1));
        assert!(fields.column("fan.speed").is_some() && fields.column("pstate").is_none());
        assert!(!fields.refuse(&message("fan.speed")));
    }

    #[test]
    fn a_name_that_was_not_queried_changes_nothing_but_the_list() {
        let mut fields = FieldList::default();
        assert!(fields.refuse(&message("$(reboot)")));
        assert_eq!(fields.len(), BASIC.len() + SINCE_R418.len());
        assert_eq!(refused_field("Field \"a\" is fine"), None);
        assert_eq!(refused_field("Field \"a"), None);
    }
}
