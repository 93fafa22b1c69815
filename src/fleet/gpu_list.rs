//! Lists of GPU indexes as text.

/// How [`format_gpu_list`] writes several GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuListStyle {
    /// Runs of three or more as ranges: `GPUs 0-2,7`.
    Ranges,
    /// Each index: `GPUs 0,1,2,7`.
    Each,
}

/// GPU indexes in a table cell: `0-3` for three or more in a row, `2,3` for two, `0+5` for GPU 0 and five more that do
/// not follow it, `-` for no GPU. `indexes` ascend.
pub fn gpu_list(indexes: &[u32]) -> String {
    match indexes {
        [] => "-".to_owned(),
        [first, second] => format!("{first},{second}"),
        [first, rest @ ..] => match run(indexes) {
            length if length == indexes.len() => joined(indexes, GpuListStyle::Ranges),
            _ => format!("{first}+{}", rest.len()),
        },
    }
}

/// All GPUs in a sentence, ascending: `GPU 3`, `GPUs 0-2,7`, `no GPU`.
pub fn format_gpu_list(indexes: &[u32], style: GpuListStyle) -> String {
    let mut sorted = indexes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    match sorted[..] {
        [] => "no GPU".to_owned(),
        [only] => format!("GPU {only}"),
        _ => format!("GPUs {}", joined(&sorted, style)),
    }
}

fn joined(indexes: &[u32], style: GpuListStyle) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = indexes;
    while !rest.is_empty() {
        let (run, after) = rest.split_at(run(rest));
        match run {
            [first, .., last] if run.len() > 2 && style == GpuListStyle::Ranges => {
                parts.push(format!("{first}-{last}"));
            }
            run => parts.extend(run.iter().map(u32::to_string)),
        }
        rest = after;
    }
    parts.join(",")
}

/// How many indexes at the beginning follow one another.
fn run(indexes: &[u32]) -> usize {
    let Some(first) = indexes.first() else { return 0 };
    // In u64, so that the last index has a successor.
    indexes.iter().zip(u64::from(*first)..).take_while(|(index, expected)| u64::from(**index) == *expected).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_short() {
        for (indexes, text) in [
            (&[][..], "-"),
            (&[4], "4"),
            (&[2, 3], "2,3"),
            (&[0, 7], "0,7"),
            (&[0, 1, 2, 3], "0-3"),
            (&[5, 6, 7], "5-7"),
            (&[0, 2, 3, 5, 6, 7], "0+5"),
            (&[1, 2, 4], "1+2"),
            (&[u32::MAX], "4294967295"),
        ] {
            assert_eq!(gpu_list(indexes), text);
        }
    }

    #[test]
    fn a_sentence_names_every_gpu() {
        for (indexes, ranges, each) in [
            (&[0, 1, 2, 3, 4, 5, 6, 7][..], "GPUs 0-7", "GPUs 0,1,2,3,4,5,6,7"),
            (&[3, 3], "GPU 3", "GPU 3"),
            (&[5, 2, 3], "GPUs 2,3,5", "GPUs 2,3,5"),
            (&[0, 1, 2, 7], "GPUs 0-2,7", "GPUs 0,1,2,7"),
            (&[], "no GPU", "no GPU"),
        ] {
            assert_eq!(format_gpu_list(indexes, GpuListStyle::Ranges), ranges);
            assert_eq!(format_gpu_list(indexes, GpuListStyle::Each), each);
        }
    }
}
