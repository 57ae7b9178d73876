//! Which address each of several restores of one image binds, and under which path each is controlled, as settings
//! (`NAME.listen=ADDR`) for each.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use crate::image::manifest::Listen;
use crate::wake::{self, Params};

/// Ports in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    /// `None` without an end of its own.
    last: Option<u16>,
}

impl FromStr for PortRange {
    type Err = String;

    /// `FIRST`, as many as it takes, or `FIRST-LAST`.
    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let bad = || format!("'{text}' is not of the form FIRST or FIRST-LAST, with ports from 1 to 65535");
        let (first, last) = match text.split_once('-') {
            None => (text, None),
            Some((first, last)) => (first, Some(port(last).ok_or_else(bad)?)),
        };
        let first = port(first).ok_or_else(bad)?;
        if last.is_some_and(|last| last < first) {
            return Err(bad());
        }
        Ok(Self { first, last })
    }
}

impl PortRange {
    /// The port at this place, from 0 on.
    fn at(self, index: usize) -> Option<u16> {
        let port = u16::try_from(index).ok().and_then(|index| self.first.checked_add(index))?;
        (port <= self.last.unwrap_or(u16::MAX)).then_some(port)
    }
}

/// Where they shall listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Each at a port that the kernel chooses.
    Free,
    /// Each at the next of these, every listener in its turn.
    Ports(PortRange),
    /// All at the addresses of the image, or at those given, which they share (`SO_REUSEPORT`).
    Shared,
}

/// No addresses for all of them; nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

impl AddressError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "give a range of ports (NAME.listen=IP:FIRST-LAST or --ports FIRST-LAST) that is large enough, port 0, or \
         --share-address"
    }
}

/// The parameters of each of `count` restores: those of `base`, with an address of its own for each listener of the
/// image. A setting of `base` may give a listener a range: `NAME.listen=IP:FIRST-LAST` or `:FIRST-LAST`.
///
/// # Errors
/// [`AddressError`] when a range is too small, or one address is given for several that do not share it.
pub fn parameters_of_each(
    listens: &[Listen],
    base: &Params,
    count: usize,
    choice: Choice,
) -> Result<Vec<Params>, AddressError> {
    let mut each = Vec::with_capacity(count);
    for clone in 0..count {
        let mut params = base.clone();
        for (place, listen) in listens.iter().enumerate() {
            let name = &listen.name;
            let address = match (base.listen(name), choice) {
                (Some(given), choice) => given_to(listen, given, clone, count, choice)?,
                (None, Choice::Shared) => listen.address,
                (None, Choice::Free) => at_port(listen, 0),
                (None, Choice::Ports(range)) => {
                    let index = clone * listens.len() + place;
                    let too_few = || AddressError(format!("{count} clones need more ports than were given"));
                    at_port(listen, range.at(index).ok_or_else(too_few)?)
                }
            };
            if choice == Choice::Shared {
                if address.port() == 0 && count > 1 {
                    return Err(AddressError(format!(
                        "listener {name} cannot share port 0: it is another each time"
                    )));
                }
                params.settings.insert(wake::share_setting(name), "yes".to_owned());
            }
            params.settings.insert(wake::listen_setting(name), address.to_string());
        }
        each.push(params);
    }
    Ok(each)
}

fn at_port(listen: &Listen, port: u16) -> SocketAddr {
    SocketAddr::new(listen.address.ip(), port)
}

/// The address for one of them, of what was given for all.
fn given_to(
    listen: &Listen,
    given: &str,
    clone: usize,
    count: usize,
    choice: Choice,
) -> Result<SocketAddr, AddressError> {
    let name = &listen.name;
    let unreadable =
        || AddressError(format!("{name}.listen={given} is no address: IP:PORT or IP:FIRST-LAST"));
    let (host, ports) = given.rsplit_once(':').ok_or_else(unreadable)?;
    let at = |port: u16| match host {
        "" => Ok(at_port(listen, port)),
        host => format!("{host}:{port}").parse().map_err(|_| unreadable()),
    };
    if ports.parse() == Ok(0_u16) {
        return at(0);
    }
    let range: PortRange = ports.parse().map_err(|_| unreadable())?;
    if range.last.is_none() {
        if count > 1 && choice != Choice::Shared {
            return Err(AddressError(format!("{name}.listen={given} is one address for {count} clones")));
        }
        return at(range.first);
    }
    let too_few =
        || AddressError(format!("{name}.listen={given} has less ports than there are clones ({count})"));
    at(range.at(clone).ok_or_else(too_few)?)
}

/// Gives each its control socket: beside `path`, or beside the one that was given for all, with the next number behind
/// the name (`NAME-1.sock` and so on) whose path is `free`.
pub fn name_sockets(each: &mut [Params], path: &Path, free: impl Fn(&Path) -> bool) {
    let setting = control_setting();
    let mut number = 0;
    for params in each {
        let home = params.settings.get(&setting).map_or(path, Path::new).to_owned();
        let path = loop {
            number += 1;
            let path = numbered(&home, number);
            if free(&path) {
                break path;
            }
        };
        params.settings.insert(setting.clone(), path.display().to_string());
    }
}

/// The setting that gives a server the path of its control socket.
#[must_use]
pub fn control_setting() -> String {
    wake::listen_setting(CONTROL)
}

/// What the control socket is registered under.
const CONTROL: &str = "control";

fn numbered(path: &Path, number: u32) -> std::path::PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// The TCP addresses that these parameters give to listeners of the image, each with the listener's name.
#[must_use]
pub fn given_addresses(listens: &[Listen], each: &[Params]) -> Vec<(String, SocketAddr)> {
    let mut given = Vec::new();
    for listen in listens {
        let texts = each.iter().filter_map(|params| params.listen(&listen.name));
        // What is no address is told by the listener itself.
        let addresses = texts.filter_map(|text| match text.strip_prefix(':') {
            Some(port) => port.parse().ok().map(|port| at_port(listen, port)),
            None => text.parse().ok(),
        });
        given.extend(addresses.map(|address| (listen.name.clone(), address)));
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listens() -> Vec<Listen> {
        let listen = |name: &str, address: &str| Listen {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            reuse_port: false,
        };
        vec![listen("echo", "127.0.0.1:7777"), listen("http", "[::1]:80")]
    }

    fn addresses(
        settings: &[(&str, &str)],
        count: usize,
        choice: Choice,
    ) -> Result<Vec<Vec<String>>, String> {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let base = Params { settings: settings.collect(), ..Params::default() };
        let each = parameters_of_each(&listens(), &base, count, choice).map_err(|error| error.to_string())?;
        let of = |params: &Params| {
            ["echo", "http"].iter().map(|name| params.listen(name).unwrap().to_owned()).collect()
        };
        Ok(each.iter().map(of).collect())
    }

    #[test]
    fn each_gets_addresses_of_its_own() {
        let range = |text: &str| Choice::Ports(text.parse().unwrap());
        assert_eq!(addresses(&[], 2, Choice::Free).unwrap(), [["127.0.0.1:0", "[::1]:0"]; 2]);
        assert_eq!(
            addresses(&[], 2, range("9000")).unwrap(),
            [["127.0.0.1:9000", "[::1]:9001"], ["127.0.0.1:9002", "[::1]:9003"]]
        );
        assert!(addresses(&[], 2, range("9000-9002")).unwrap_err().contains("more ports"));
        assert!(addresses(&[], 1, range("65535")).is_err(), "two listeners");
        let given = [("echo.listen", "127.0.0.2:50-51"), ("http.listen", ":0")];
        assert_eq!(
            addresses(&given, 2, Choice::Free).unwrap(),
            [["127.0.0.2:50", "[::1]:0"], ["127.0.0.2:51", "[::1]:0"]]
        );
        assert!(addresses(&given, 3, Choice::Free).unwrap_err().contains("less ports than"));
        let one = [("echo.listen", "127.0.0.1:50")];
        assert!(addresses(&one, 2, Choice::Free).unwrap_err().contains("one address for 2 clones"));
        assert_eq!(addresses(&one, 1, Choice::Free).unwrap(), [["127.0.0.1:50", "[::1]:0"]]);
        for bad in ["nonsense", "127.0.0.1", "127.0.0.1:x", "x:1-2", "127.0.0.1:9-8"] {
            assert!(addresses(&[("echo.listen", bad)], 2, Choice::Free).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_shared_address_is_that_of_the_image() {
        let shared = addresses(&[], 2, Choice::Shared).unwrap();
        assert_eq!(shared, [["127.0.0.1:7777", "[::1]:80"]; 2]);
        let each = parameters_of_each(&listens(), &Params::default(), 2, Choice::Shared).unwrap();
        assert!(each.iter().all(|params| params.shares("echo") && params.shares("http")));
        assert!(addresses(&[("echo.listen", ":0")], 2, Choice::Shared).unwrap_err().contains("share port 0"));
        assert_eq!(given_addresses(&listens(), &each).len(), 4);
        let mut params = Params::default();
        params.settings.insert("echo.listen".to_owned(), ":81".to_owned());
        let given = [("echo".to_owned(), "127.0.0.1:81".parse().unwrap())];
        assert_eq!(given_addresses(&listens(), &[params]), given);
    }

    #[test]
    fn sockets_are_numbered() {
        let named = |count: usize, given: Option<&str>| {
            let mut params = Params::default();
            params.settings.extend(given.map(|path| ("control.listen".to_owned(), path.to_owned())));
            let mut each = vec![params; count];
            let taken = Path::new("/run/defrost/echo-2.sock");
            name_sockets(&mut each, Path::new("/run/defrost/echo.sock"), |path| path != taken);
            each.iter().map(|params| params.listen("control").unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(named(2, None), ["/run/defrost/echo-1.sock", "/run/defrost/echo-3.sock"]);
        assert_eq!(named(2, Some("/x/y")), ["/x/y-1", "/x/y-2"]);
        assert_eq!(named(1, None), ["/run/defrost/echo-1.sock"]);
    }

    #[test]
    fn ranges_are_read() {
        assert_eq!("80".parse(), Ok(PortRange { first: 80, last: None }));
        assert_eq!("80-90".parse(), Ok(PortRange { first: 80, last: Some(90) }));
        for bad in ["", "0", "-", "90-80", "1-65536", "a-b", "1-2-3"] {
            assert!(bad.parse::<PortRange>().is_err(), "{bad}");
        }
    }
}
