use crate::diagnosis::rule::RuleInfo;
pub(in crate::diagnosis) const DRIVER_SKEW: RuleInfo = RuleInfo { word: "driver-skew", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
pub(in crate::diagnosis) const UNREACHABLE: RuleInfo = RuleInfo { word: "host-unreachable", title: "", fires: "", means: "", next: "", not: "", limits: "", source: "" };
use crate::diagnosis::{Engine, Transition};
use crate::fleet::{Fleet, Moment};

pub(in crate::diagnosis) fn evaluate(_: &mut Engine, _: &Fleet, _: Moment, _: &mut Vec<Transition>) {}
