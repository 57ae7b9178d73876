//! The `defrost` command. See the library's `cli`.

fn main() -> std::process::ExitCode {
    defrost::cli::main()
}
