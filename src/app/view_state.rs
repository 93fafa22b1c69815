//! The choices of the user that are kept between runs.

use super::App;
use super::derived_state::Changes;
use super::layout::Density;
use super::screen::{ChartSpan, HostVisibility, Metric, View};
use crate::fleet::{Group, ListOrder, SortKey};
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};

/// The version of the file. It increases when a field changes its meaning, not when a field is added.
pub const VIEW_STATE_VERSION: u32 = 1;
/// At most this many host names are kept per list.
const MAX_HOSTS: usize = 10_000;

/// View, order, filter, host visibility, density and charts. An unknown value leaves the default in place.
#[allow(clippy::struct_excessive_bools, reason = "each is an independent choice")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ViewState {
    /// [`VIEW_STATE_VERSION`].
    pub version: u32,
    view: String,
    group: String,
    sort: String,
    descending: bool,
    filter: String,
    mine: bool,
    idle: bool,
    problems: bool,
    user: Option<SafeText>,
    hidden: Vec<SafeText>,
    pinned: Vec<SafeText>,
    density: String,
    metric: String,
    span: String,
}

const VIEWS: [(&str, View); 5] = [
    ("overview", View::Overview),
    ("wall", View::Wall),
    ("processes", View::Processes),
    ("users", View::Users),
    ("findings", View::Findings),
];

impl ViewState {
    /// Parses the text of the file.
    ///
    /// # Errors
    /// Returns the cause if the text is not valid JSON or has another version.
    pub fn parse(text: &str) -> Result<Self, String> {
        let view_state: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match view_state.version {
            VIEW_STATE_VERSION => Ok(view_state),
            other => Err(format!("it has version {other}, but this gpufleet reads version {VIEW_STATE_VERSION}")),
        }
    }
}

impl App {
    /// Returns the choices to keep for the next run.
    pub fn view_state(&self) -> ViewState {
        let order = self.screen.list.order();
        let top = self.screen.root_view();
        let names = |names: &std::collections::BTreeSet<SafeText>| names.iter().take(MAX_HOSTS).cloned().collect();
        ViewState {
            version: VIEW_STATE_VERSION,
            view: VIEWS.iter().find(|(_, view)| view == top).map(|(word, _)| (*word).to_owned()).unwrap_or_default(),
            group: order.group.word().to_owned(),
            sort: order.key.word().to_owned(),
            descending: order.is_descending,
            filter: self.list_filter.text().to_owned(),
            mine: self.list_filter.mine,
            idle: self.list_filter.idle,
            problems: self.list_filter.problems,
            user: self.list_filter.user.clone(),
            hidden: names(&self.host_visibility.hidden),
            pinned: names(&self.host_visibility.pinned),
            density: self.density.word().to_owned(),
            metric: self.screen.metric.word().to_owned(),
            span: self.screen.span.without_store().word().to_owned(),
        }
    }

    /// Restores the choices of the last run.
    pub fn restore_view_state(&mut self, view_state: &ViewState) {
        let group = Group::ALL.into_iter().find(|group| group.word() == view_state.group);
        if let Some(key) = SortKey::ALL.into_iter().find(|key| key.word() == view_state.sort) {
            let is_descending = view_state.descending;
            self.screen.list.set_order(ListOrder { key, is_descending, group: group.unwrap_or_default() });
        }
        self.list_filter.restore(&view_state.filter);
        self.list_filter.mine = view_state.mine;
        self.list_filter.idle = view_state.idle;
        self.list_filter.problems = view_state.problems;
        self.list_filter.user.clone_from(&view_state.user);
        let names = |names: &[SafeText]| names.iter().take(MAX_HOSTS).cloned().collect();
        self.host_visibility = HostVisibility { hidden: names(&view_state.hidden), pinned: names(&view_state.pinned) };
        // An empty screen looks broken.
        if self.fleet.hosts().iter().all(|host| self.host_visibility.hidden.contains(host.name())) {
            self.host_visibility.hidden.clear();
        }
        let density = Density::ALL.into_iter().find(|density| density.word() == view_state.density);
        self.density = density.unwrap_or(self.density);
        let metric = Metric::ALL.into_iter().find(|metric| metric.word() == view_state.metric);
        self.screen.metric = metric.unwrap_or(self.screen.metric);
        let span = ChartSpan::ALL.into_iter().find(|span| !span.is_stored() && span.word() == view_state.span);
        self.screen.span = span.unwrap_or(self.screen.span);
        if let Some((_, view)) = VIEWS.into_iter().find(|(word, _)| *word == view_state.view) {
            self.screen.show(view);
        }
        self.update_derived_state(Changes::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::testing::{NOW, app, at, press};

    #[test]
    fn a_restored_view_state_equals_the_saved_one() {
        let mut first = app(4, 8, (120, 40));
        press(&mut first, "→D←*c\tog/user:erika\nm3");
        let view_state = first.view_state();
        let text = serde_json::to_string(&view_state).expect("writes");
        let mut second = app(4, 8, (120, 40));
        second.restore_view_state(&ViewState::parse(&text).expect("reads"));
        assert_eq!(second.view_state(), view_state);
        assert_eq!(second.screen().view(), &View::Processes);
        assert_eq!(second.rows().len(), first.rows().len());
        assert_eq!(second.visible_hosts(), first.visible_hosts());
        assert!(second.list_filter().mine && second.list_filter().text() == "user:erika");
    }

    #[test]
    fn unknown_values_leave_the_defaults() {
        let mut app = app(2, 8, (120, 40));
        let before = app.view_state();
        let text = r#"{"version":1,"view":"moon","group":"x","sort":"y","filter":"mem>","density":"z","new":1,
            "hidden":["hgx-01","hgx-02"]}"#;
        app.restore_view_state(&ViewState::parse(text).expect("reads"));
        assert_eq!(app.view_state(), before);
        assert_eq!(app.notice(at(NOW)), None);
    }

    #[test]
    fn parse_rejects_other_versions_and_broken_json() {
        assert_eq!(
            ViewState::parse("{\"version\":7}"),
            Err("it has version 7, but this gpufleet reads version 1".to_owned())
        );
        assert_eq!(ViewState::parse("{}"), Err("it has version 0, but this gpufleet reads version 1".to_owned()));
        assert!(ViewState::parse("{\"version\":").is_err_and(|error| error.starts_with("EOF while parsing")));
    }
}
