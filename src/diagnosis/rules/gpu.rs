use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const THERMAL: RuleInfo = RuleInfo { word: "thermal-throttle", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const POWER_BRAKE: RuleInfo = RuleInfo { word: "power-brake", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const TEMPERATURE: RuleInfo = RuleInfo { word: "temperature", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const ECC: RuleInfo = RuleInfo { word: "ecc-uncorrectable", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const ROW_REMAP: RuleInfo = RuleInfo { word: "row-remap", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const PCIE: RuleInfo = RuleInfo { word: "pcie-degraded", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const NVLINK: RuleInfo = RuleInfo { word: "nvlink-down", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const PERSISTENCE: RuleInfo = RuleInfo { word: "persistence-off", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
