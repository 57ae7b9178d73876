//! Builds the freestanding program with the compiler that builds everything else, for the same target.
//!
//! It is no binary target of the package: that would need a linker script and flags which a manifest cannot give
//! to one target, and `cargo install` would install it beside the command.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Where the program exists: its system calls and registers are written for these.
const SUPPORTED: [(&str, &str); 1] = [("x86_64", "linux")];

fn main() {
    println!("cargo::rerun-if-changed=program");
    println!("cargo::rerun-if-changed=src/wire.rs");
    println!("cargo::rustc-check-cfg=cfg(has_restorer)");
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let (architecture, system) = (variable("CARGO_CFG_TARGET_ARCH"), variable("CARGO_CFG_TARGET_OS"));
    if !SUPPORTED.contains(&(architecture.as_str(), system.as_str())) {
        return;
    }
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let script = root.join("program").join("link.ld");
    let mut compiler = Command::new(variable("RUSTC"));
    compiler
        .arg(root.join("program").join("main.rs"))
        .args(["--crate-name", "restorer", "--crate-type", "bin", "--edition", "2024"])
        .args(["--target", &variable("TARGET")])
        .args(["-C", "panic=abort", "-C", "opt-level=2", "-C", "debuginfo=0", "-C", "strip=symbols"])
        // It copies itself to another address and goes on there.
        .args(["-C", "relocation-model=pic", "-C", "no-redzone=yes", "-C", "force-unwind-tables=no"])
        .args(["-C", "link-arg=-nostartfiles", "-C", "link-arg=-nostdlib", "-C", "link-arg=-static"])
        .args(["-C", "link-arg=-no-pie", "-C", "link-arg=-Wl,--build-id=none"])
        .arg("-C")
        .arg(format!("link-arg=-Wl,-T,{}", script.display()))
        .arg("-o")
        .arg(PathBuf::from(variable("OUT_DIR")).join("restorer"));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        compiler.arg("-C").arg(format!("linker={linker}"));
    }
    match compiler.status() {
        Ok(status) if status.success() => println!("cargo::rustc-cfg=has_restorer"),
        Ok(status) => panic!("the restorer did not build: {status}"),
        Err(error) => panic!("the compiler did not start: {error}"),
    }
}
