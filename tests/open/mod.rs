//! Programs that hold things open: each file sets one scene.

pub mod scene;

mod events;
mod memory;
mod refused;
mod sockets;

use scene::Scene;

pub use refused::REASONS;

/// A program's name, how its scene is set, and which engines bring it back.
pub type Program = (&'static str, fn(&mut Scene), &'static [&'static str]);

const EITHER: &[&str] = &["criu", "instant"];

/// Programs whose things all come back.
pub const PROGRAMS: &[Program] = &[
    ("memory", memory::set, EITHER),
    ("sockets", sockets::set, EITHER),
    ("events", events::set, EITHER),
    ("more_than_criu", more_than_criu, &["instant"]),
];

/// CRIU 4.2.1 maps what is sealed against writing by a descriptor that may write, and then cannot seal it. A
/// periodic timer that has expired never does so again.
fn more_than_criu(scene: &mut Scene) {
    memory::set_sealed(scene);
    events::set_periodic(scene);
}

/// Becomes the program of this name.
pub fn play(name: &str) {
    defrost::init().expect("the start-up rules");
    let mut scene = Scene::new(&crate::role::Role::of_this_process());
    match PROGRAMS.iter().find(|(known, ..)| *known == name) {
        Some((_, set, _)) => set(&mut scene),
        None if name == "refused" => refused::set(&mut scene),
        None => panic!("no program is called {name}"),
    }
    scene.checkpoint();
}
