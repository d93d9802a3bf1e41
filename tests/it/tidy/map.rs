//! The map of the code in `docs/architecture.md`: the rooms in their order, and for each the first
//! sentence of its `mod.rs`, which goes on with its files.

use std::fmt::Write;

use crate::tidy::graph::{Graph, Module};
use crate::tidy::rooms::{opening, rooms};

pub(super) fn written() -> String {
    let graph = Graph::read();
    let mut map = "\n| room | what is in it |\n|---|---|\n".to_owned();
    write_rooms_in(&graph, &Module::new(), &mut map);
    map
}

fn write_rooms_in(graph: &Graph, outer: &Module, map: &mut String) {
    let rooms = rooms(graph);
    for name in &graph.files[outer].declares {
        let room = [&outer[..], std::slice::from_ref(name)].concat();
        if rooms.contains(&room) {
            let path = room.join("/");
            writeln!(
                map,
                "| [`{path}`](../src/{path}/mod.rs) | {} |",
                first_sentence(&room)
            )
            .expect("a text");
            write_rooms_in(graph, &room, map);
        }
    }
}

fn first_sentence(room: &Module) -> String {
    let opening = opening(room).join(" ");
    let end = opening.find(". ").map_or(opening.len(), |at| at + 1);
    opening[..end].to_owned()
}
