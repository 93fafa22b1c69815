//! Which file system a path lies on, by the table of mounts alone.

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) point: String,
    pub(super) kind: String,
}

/// The mount that `path` lies on: of those whose point is above it the longest, of those the last, which covers the
/// others. `mountinfo` is the text of `/proc/self/mountinfo` (proc(5)).
pub(super) fn mount_containing(mountinfo: &str, path: &str) -> Option<Mount> {
    let mut found: Option<Mount> = None;
    for line in mountinfo.lines() {
        let Some((fields, rest)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (fields.split(' ').nth(4), rest.split(' ').next()) else { continue };
        let point = unescape_octal(point);
        let contains_path =
            point == "/" || path.strip_prefix(&*point).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if contains_path && found.as_ref().is_none_or(|found| point.len() >= found.point.len()) {
            found = Some(Mount { point, kind: kind.to_owned() });
        }
    }
    found
}

/// Undoes the octal escapes of blanks and backslashes (`\040`).
fn unescape_octal(text: &str) -> String {
    let mut pieces = text.split('\\');
    let mut unescaped_text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let byte = piece.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii);
        if let Some(byte) = byte {
            unescaped_text.push(char::from(byte));
            unescaped_text.push_str(&piece[3..]);
        } else {
            unescaped_text.push('\\');
            unescaped_text.push_str(piece);
        }
    }
    unescaped_text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /dev rw shared:2 - devtmpfs udev rw
40 22 0:50 / /home rw,nosuid shared:9 master:3 - nfs4 server:/home rw,vers=4.2
41 22 0:51 / /data\\040one rw - lustre mgs@o2ib:/data rw
42 40 0:52 / /home/alice rw - nfs4 server2:/alice rw
43 40 0:53 / /home/alice rw - fuse.sshfs elsewhere:/ rw
";

    #[test]
    fn the_longest_and_last_mount_that_contains_a_path_is_used() {
        let of = |path| mount_containing(TABLE, path).map(|mount| (mount.point, mount.kind));
        let expect = |point: &str, kind: &str| Some((point.to_owned(), kind.to_owned()));
        assert_eq!(of("/home/bob/run"), expect("/home", "nfs4"));
        assert_eq!(of("/home"), expect("/home", "nfs4"));
        assert_eq!(of("/homes/bob"), expect("/", "ext4"));
        assert_eq!(of("/home/alice/x"), expect("/home/alice", "fuse.sshfs"));
        assert_eq!(of("/data one/x"), expect("/data one", "lustre"));
        assert_eq!(mount_containing("noise\n", "/"), None);
    }
}
