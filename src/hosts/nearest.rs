//! The word somebody probably meant.

/// How many single edits lead from `a` to `b`: a character put in, taken out, changed, or swapped with its neighbour.
///
/// A swap counts once, since `statsu` for `status` is one slip of the fingers (optimal string alignment).
pub fn edits(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

/// The candidate nearest to `word`, when it is near enough to have been meant: a third of its letters at most differ.
/// Upper and lower case count as the same. Of equals the first wins.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (edits(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count().max(word.chars().count()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edits_are_counted_as_fingers_make_them() {
        assert_eq!(edits("status", "status"), 0);
        assert_eq!(edits("statsu", "status"), 1);
        assert_eq!(edits("staus", "status"), 1);
        assert_eq!(edits("stattus", "status"), 1);
        assert_eq!(edits("stotus", "status"), 1);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn the_nearest_is_named_only_when_it_is_near() {
        let keys = ["address", "port", "identity_file"];
        assert_eq!(nearest("adress", keys), Some("address"));
        assert_eq!(nearest("PORT", keys), Some("port"));
        assert_eq!(nearest("identityfile", keys), Some("identity_file"));
        assert_eq!(nearest("frobnicate", keys), None);
        assert_eq!(nearest(&"x".repeat(10_000), keys), None);
    }

    proptest! {
        #[test]
        fn edits_are_symmetric_and_zero_only_for_equals(a in "[a-d]{0,7}", b in "[a-d]{0,7}") {
            prop_assert_eq!(edits(&a, &b), edits(&b, &a));
            prop_assert_eq!(edits(&a, &b) == 0, a == b);
        }
    }
}
