//! What the screen remembers from one run to the next: the view, the order, what is left out, which hosts stand where.

use super::{App, ChartSpan, Density, HostChoice, Metric, View};
use crate::fleet::{Group, ListOrder, SortKey};
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};

/// The version of the file. It rises when a field changes its meaning, not when one is added.
pub const VIEW_VERSION: u32 = 1;
/// More names of hosts are not kept.
const MOST_HOSTS: usize = 10_000;

/// What is remembered. A word that this version does not know leaves that part as built in.
#[allow(clippy::struct_excessive_bools, reason = "each is a choice of its own, as the keys are")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remembered {
    /// [`VIEW_VERSION`].
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

impl Remembered {
    /// Reads the text of the file.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let remembered: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match remembered.version {
            VIEW_VERSION => Ok(remembered),
            other => Err(format!("it is of version {other}, this gpufleet reads {VIEW_VERSION}")),
        }
    }
}

impl App {
    /// What the screen shall remember.
    pub fn remembered(&self) -> Remembered {
        let order = self.screen.list.order();
        let top = self.screen.top_view();
        let names = |names: &std::collections::BTreeSet<SafeText>| names.iter().take(MOST_HOSTS).cloned().collect();
        Remembered {
            version: VIEW_VERSION,
            view: VIEWS.iter().find(|(_, view)| view == top).map(|(word, _)| (*word).to_owned()).unwrap_or_default(),
            group: order.group.word().to_owned(),
            sort: order.key.word().to_owned(),
            descending: order.is_descending,
            filter: self.narrowing.text().to_owned(),
            mine: self.narrowing.mine,
            idle: self.narrowing.idle,
            problems: self.narrowing.problems,
            user: self.narrowing.user.clone(),
            hidden: names(&self.hosts.hidden),
            pinned: names(&self.hosts.pinned),
            density: self.density.word().to_owned(),
            metric: self.screen.metric.word().to_owned(),
            span: self.screen.span.word().to_owned(),
        }
    }

    /// Takes up what was remembered.
    pub fn recall(&mut self, remembered: &Remembered) {
        let group = Group::ALL.into_iter().find(|group| group.word() == remembered.group);
        if let Some(key) = SortKey::ALL.into_iter().find(|key| key.word() == remembered.sort) {
            let is_descending = remembered.descending;
            self.screen.list.set_order(ListOrder { key, is_descending, group: group.unwrap_or_default() });
        }
        self.narrowing.restore(&remembered.filter);
        self.narrowing.mine = remembered.mine;
        self.narrowing.idle = remembered.idle;
        self.narrowing.problems = remembered.problems;
        self.narrowing.user.clone_from(&remembered.user);
        let names = |names: &[SafeText]| names.iter().take(MOST_HOSTS).cloned().collect();
        self.hosts = HostChoice { hidden: names(&remembered.hidden), pinned: names(&remembered.pinned) };
        // A fleet of which nothing is shown looks broken.
        if self.fleet.hosts().iter().all(|host| self.hosts.hidden.contains(host.name())) {
            self.hosts.hidden.clear();
        }
        let density = Density::ALL.into_iter().find(|density| density.word() == remembered.density);
        self.density = density.unwrap_or(self.density);
        let metric = Metric::ALL.into_iter().find(|metric| metric.word() == remembered.metric);
        self.screen.metric = metric.unwrap_or(self.screen.metric);
        let span = ChartSpan::ALL.into_iter().find(|span| span.word() == remembered.span);
        self.screen.span = span.unwrap_or(self.screen.span);
        if let Some((_, view)) = VIEWS.into_iter().find(|(word, _)| *word == remembered.view) {
            self.screen.show(view);
        }
        self.hosts_changed();
        self.view_changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::testing::{NOW, app, at, press};

    #[test]
    fn what_was_left_is_found_again() {
        let mut first = app(4, 8, (120, 40));
        press(&mut first, "→D←*c\tog/user:erika\nm3");
        let remembered = first.remembered();
        let text = serde_json::to_string(&remembered).expect("writes");
        let mut second = app(4, 8, (120, 40));
        second.recall(&Remembered::parse(&text).expect("reads"));
        assert_eq!(second.remembered(), remembered);
        assert_eq!(second.screen().view(), &View::Processes);
        assert_eq!(second.rows().len(), first.rows().len());
        assert_eq!(second.shown_hosts(), first.shown_hosts());
        assert!(second.narrowing().mine && second.narrowing().text() == "user:erika");
    }

    #[test]
    fn what_is_not_understood_is_as_built_in() {
        let mut app = app(2, 8, (120, 40));
        let before = app.remembered();
        let text = r#"{"version":1,"view":"moon","group":"x","sort":"y","filter":"mem>","density":"z","new":1,
            "hidden":["hgx-01","hgx-02"]}"#;
        app.recall(&Remembered::parse(text).expect("reads"));
        assert_eq!(app.remembered(), before);
        assert_eq!(app.notice(at(NOW)), None);
    }

    #[test]
    fn a_broken_file_is_told() {
        assert_eq!(Remembered::parse("{\"version\":7}"), Err("it is of version 7, this gpufleet reads 1".to_owned()));
        assert_eq!(Remembered::parse("{}"), Err("it is of version 0, this gpufleet reads 1".to_owned()));
        assert!(Remembered::parse("{\"version\":").is_err_and(|error| error.starts_with("EOF while parsing")));
    }
}
