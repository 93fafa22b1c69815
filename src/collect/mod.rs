//! One task a host: a stream of probe lines in, [`crate::fleet::HostUpdate`]s out.
