//! Tests of the audit: the rules on made-up scans, and the scan on real descriptors.

mod live;
mod subject;
mod verdicts;
mod wires;
