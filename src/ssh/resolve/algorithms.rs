//! The lists of algorithms that the ssh configuration sets.

/// `HostKeyAlgorithms` and its like, each by the names of OpenSSH in the order of preference; `None` where the
/// configuration leaves them as its `ssh` has them. Then ours are used: they are as sound, and a newer client's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::ssh) struct Algorithms {
    pub(in crate::ssh) host_keys: Option<Vec<String>>,
    pub(in crate::ssh) key_exchanges: Option<Vec<String>>,
    pub(in crate::ssh) ciphers: Option<Vec<String>>,
    pub(in crate::ssh) macs: Option<Vec<String>>,
    /// What the keys of the user may sign with.
    pub(in crate::ssh) public_keys: Option<Vec<String>>,
}

impl Algorithms {
    /// Reads a host's output of `ssh -G`, and beside it that of a host of which no configuration says anything: `ssh`
    /// names every list in full, and what is the same in both was not set.
    pub(super) fn read(output: &str, usual: &str) -> Self {
        let list = |keywords: &[&str]| {
            let (set, usual) = (value(output, keywords)?, value(usual, keywords));
            (usual != Some(set)).then(|| set.split(',').map(|name| name.trim().to_owned()).collect())
        };
        Self {
            host_keys: list(&["hostkeyalgorithms"]),
            key_exchanges: list(&["kexalgorithms"]),
            ciphers: list(&["ciphers"]),
            macs: list(&["macs"]),
            // The name before OpenSSH 8.5.
            public_keys: list(&["pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes"]),
        }
    }
}

fn value<'a>(output: &'a str, keywords: &[&str]) -> Option<&'a str> {
    output.lines().find_map(|line| {
        let (keyword, value) = line.split_once(' ')?;
        keywords.contains(&keyword).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_was_set() {
        let usual = "ciphers a,b\nmacs m\nkexalgorithms k\npubkeyacceptedalgorithms p\n";
        let set = Algorithms::read("ciphers b,a\nmacs m\nkexalgorithms k\npubkeyacceptedalgorithms p\n", usual);
        assert_eq!(set, Algorithms { ciphers: Some(vec!["b".into(), "a".into()]), ..Algorithms::default() });
        assert_eq!(Algorithms::read("", usual), Algorithms::default());
        let old = Algorithms::read("pubkeyacceptedkeytypes q\nhostkeyalgorithms h\n", "pubkeyacceptedkeytypes p\n");
        assert_eq!((old.public_keys, old.host_keys), (Some(vec!["q".into()]), Some(vec!["h".into()])));
    }
}
