use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const JOB_ENDED: RuleInfo = RuleInfo { word: "job-ended", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const LOG_SILENT: RuleInfo = RuleInfo { word: "log-silent", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
