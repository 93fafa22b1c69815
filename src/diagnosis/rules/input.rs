use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const INPUT_STALL: RuleInfo = RuleInfo { word: "input-stall", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
