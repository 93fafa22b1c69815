use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const LOW_POWER: RuleInfo = RuleInfo { word: "low-power-high-util", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const IMBALANCE: RuleInfo = RuleInfo { word: "gpu-imbalance", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
