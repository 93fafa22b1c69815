use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const PRESSURE: RuleInfo = RuleInfo { word: "gpu-mem-pressure", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const LEAK: RuleInfo = RuleInfo { word: "gpu-mem-leak", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
