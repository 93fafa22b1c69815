use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const JOB_STALLED: RuleInfo = RuleInfo { word: "job-stalled", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const IDLE_HOG: RuleInfo = RuleInfo { word: "idle-hog", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
