use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const DSTATE_HANG: RuleInfo = RuleInfo { word: "dstate-hang", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const STOPPED: RuleInfo = RuleInfo { word: "stopped-holding-gpu", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const ZOMBIE: RuleInfo = RuleInfo { word: "zombie-holding-gpu", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const ORPHAN: RuleInfo = RuleInfo { word: "orphan-holding-gpu", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const GHOST: RuleInfo = RuleInfo { word: "ghost-memory", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
