//! Starts real OpenSSH servers on loopback, for tests.
