use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const PROBE_BLOCKED: RuleInfo = RuleInfo { word: "probe-blocked", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const GPU_LOST: RuleInfo = RuleInfo { word: "gpu-lost", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const NEEDS_ACTION: RuleInfo = RuleInfo { word: "gpu-needs-action", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const XID: RuleInfo = RuleInfo { word: "xid-seen", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const MISMATCH: RuleInfo = RuleInfo { word: "driver-mismatch", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
