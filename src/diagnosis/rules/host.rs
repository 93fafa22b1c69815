use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const RAM: RuleInfo = RuleInfo { word: "host-ram-low", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const OOM: RuleInfo = RuleInfo { word: "oom-kill", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const DISK: RuleInfo = RuleInfo { word: "disk-full", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const NFS: RuleInfo = RuleInfo { word: "nfs-hang", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
