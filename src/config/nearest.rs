//! The word that was probably meant.

use strsim::osa_distance;

/// The candidate nearest to `word`, when it is near enough to have been meant: a third of its letters at most differ.
/// Upper and lower case count as the same. Of equals the first wins.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count().max(word.chars().count()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The hint that names the nearest candidate: ``did you mean `word`?``.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(word, candidates).map(|near| format!("did you mean `{near}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_named_only_when_it_is_near() {
        let keys = ["address", "port", "identity_file"];
        assert_eq!(nearest("adress", keys), Some("address"));
        assert_eq!(nearest("prot", keys), Some("port"), "a swap is one edit");
        assert_eq!(nearest("PORT", keys), Some("port"));
        assert_eq!(nearest("identityfile", keys), Some("identity_file"));
        assert_eq!(nearest("frobnicate", keys), None);
        assert_eq!(nearest(&"x".repeat(10_000), keys), None);
    }
}
