use super::*;

const ALL: u64 = (1 << 41) - 1;

fn inherited() -> Inherited {
    let capabilities =
        Capabilities { effective: ALL, permitted: ALL, bounding: ALL, ..Capabilities::default() };
    Inherited { groups: vec![0], groups_are_fixed: false, capabilities, no_new_privs: false }
}

fn same() -> Credentials {
    let all = vec![u32::MAX, (ALL >> 32) as u32];
    Credentials {
        cap_eff: all.clone(),
        cap_prm: all.clone(),
        cap_bnd: all,
        cap_inh: vec![0, 0],
        groups: vec![0],
        ..Credentials::default()
    }
}

fn nobody() -> Credentials {
    let none = vec![0, 0];
    let (uid, gid) = (65534, 65533);
    Credentials {
        uid,
        euid: uid,
        suid: uid,
        fsuid: uid,
        gid,
        egid: gid,
        sgid: gid,
        fsgid: gid,
        cap_eff: none.clone(),
        cap_prm: none,
        groups: vec![],
        no_new_privs: Some(1),
        ..same()
    }
}

/// System call numbers, with the option where it is prctl.
fn names(inherited: &Inherited, credentials: &Credentials) -> Vec<(u64, u64)> {
    let calls = change(inherited, &Wanted::of(credentials), &mut Writer::new(0));
    let prctl = libc::SYS_prctl.cast_unsigned();
    calls.iter().map(|call| (call.number, if call.number == prctl { call.arguments[0] } else { 0 })).collect()
}

#[test]
fn a_thread_that_had_what_it_gets_does_nothing() {
    assert_eq!(names(&inherited(), &same()), []);
    assert_eq!(obstacles(&inherited(), &Wanted::of(&same())), [""; 0]);
}

#[test]
fn privileges_go_after_what_takes_them() {
    let prctl = |option: libc::c_int| (libc::SYS_prctl.cast_unsigned(), u64::from(option.unsigned_abs()));
    let plain = |number: libc::c_long| (number.cast_unsigned(), 0);
    let expected = [
        plain(libc::SYS_setgroups),
        prctl(libc::PR_SET_SECUREBITS),
        plain(libc::SYS_setresgid),
        plain(libc::SYS_setresuid),
        prctl(libc::PR_SET_SECUREBITS),
        plain(libc::SYS_capset),
        prctl(libc::PR_SET_NO_NEW_PRIVS),
    ];
    assert_eq!(names(&inherited(), &nobody()), expected);
}

#[test]
fn ambient_capabilities_are_raised_while_that_is_allowed() {
    let one = vec![1 << 10, 0];
    let bound = vec![!1, (ALL >> 32) as u32];
    // NO_CAP_AMBIENT_RAISE.
    let wanted = Credentials {
        cap_amb: one.clone(),
        cap_inh: one.clone(),
        cap_prm: one.clone(),
        cap_eff: vec![0, 0],
        cap_bnd: bound,
        secbits: 1 << 6,
        ..same()
    };
    let prctl = |option: libc::c_int| (libc::SYS_prctl.cast_unsigned(), u64::from(option.unsigned_abs()));
    let capset = (libc::SYS_capset.cast_unsigned(), 0);
    let expected = [
        capset,
        prctl(libc::PR_CAP_AMBIENT),
        prctl(libc::PR_SET_SECUREBITS),
        prctl(libc::PR_CAPBSET_DROP),
        capset,
    ];
    assert_eq!(names(&inherited(), &wanted), expected);
}

#[test]
fn the_user_for_files_is_set_on_its_own_and_looked_at() {
    let wanted = Credentials { fsuid: 7, ..same() };
    let calls = change(&inherited(), &Wanted::of(&wanted), &mut Writer::new(0));
    let files: Vec<(u64, u64)> = calls
        .iter()
        .filter(|call| call.number == libc::SYS_setfsuid.cast_unsigned())
        .map(|call| (call.arguments[0], call.expected))
        .collect();
    assert_eq!(files, [(7, 0), (u64::from(u32::MAX), 7)]);
}

#[test]
fn what_cannot_be_given_is_named() {
    let mut less = inherited();
    less.capabilities.permitted &= !(1 << 21);
    less.capabilities.effective = less.capabilities.permitted & !CAP_SETUID;
    less.no_new_privs = true;
    let found = obstacles(&less, &Wanted::of(&same())).join("\n");
    assert!(
        found.contains("cannot be given here: cap_sys_admin") && found.contains("no_new_privs"),
        "{found}"
    );
    let found = obstacles(&less, &Wanted::of(&nobody())).join("\n");
    assert!(found.contains("takes cap_setuid"), "{found}");
    assert!(!found.contains("cap_sys_admin"), "it is not asked for: {found}");
}

#[test]
fn users_are_looked_up_in_the_map_of_the_namespace() {
    let map = "         0       1000          1\n       100     100000      65536\n";
    assert!(is_mapped(map, 0) && is_mapped(map, 100) && is_mapped(map, 65635));
    assert!(!is_mapped(map, 1) && !is_mapped(map, 65636) && !is_mapped("", 0));
}
