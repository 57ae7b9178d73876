//! A figure: rows with a name, a strip of SVG and a value, an axis below them, and the numbers as a table.
//!
//! The charts are SVG of our own, written by the same macro as the page. The crates that plot were looked at: they
//! put colours into each mark (plotters), need a script (charming, plotly), or know lines and bars of theirs only
//! (poloto). Here marks have classes, so that the one style sheet serves dark, light and print; places are in percent
//! of the strip, so that text keeps its size on a narrow screen; and names are text of the page, which breaks into
//! lines. It must not know what is shown.

use maud::{Markup, html};

use super::axis::Axis;

/// One row.
#[derive(Debug)]
pub(super) struct Row {
    /// What it is of.
    pub(super) name: Markup,
    /// The value that a reader looks for.
    pub(super) value: Markup,
    /// What the strip shows, in a sentence for those who do not see it.
    pub(super) said: String,
    /// The height of the strip in pixels.
    pub(super) height: u32,
    /// SVG; x in percent of the axis, y in pixels.
    pub(super) marks: Markup,
}

/// The rows over their axis. `values` says what the column of values is.
pub(super) fn chart(rows: &[Row], axis: &Axis, values: &str, numbers: &Table) -> Markup {
    html! {
        figure {
            div.rows {
                // One grid under all rows; a narrow screen has the names between them, and a grid in each strip.
                div.row.under aria-hidden="true" { div {} svg width="100%" height="100%" { (grid(axis)) } div {} }
                div.row.head aria-hidden="true" { div {} div {} div.value { (values) } }
                @for row in rows {
                    div.row {
                        div.name { (row.name) }
                        svg.strip role="img" aria-label=(row.said) height=(row.height) width="100%" {
                            g.own { (grid(axis)) }
                            (row.marks)
                        }
                        div.value { (row.value) }
                    }
                }
                div.row.axis aria-hidden="true" {
                    div {}
                    svg height="20" width="100%" {
                        @for (place, label) in named(axis) {
                            text x=(percent(place)) y="14" text-anchor=(anchor(place)) { (label) }
                        }
                    }
                    div.value { @if axis.is_log() { "logarithmic" } }
                }
            }
            (numbers.folded("Numbers"))
        }
    }
}

/// The values that are named below the axis: those with room for their names on a narrow screen, and on a linear axis
/// at equal distances.
fn named(axis: &Axis) -> Vec<(f64, String)> {
    let short = |(place, label): (f64, String)| (place, label.replace(".0 ", " "));
    let ticks: Vec<_> = axis.ticks().into_iter().map(short).collect();
    // Names at the ends lie to one side of their place.
    let room = |before: f64, place: f64| {
        let ends = [before, place].into_iter().filter(|place| anchor(*place) != "middle").count();
        place - before >= [14.0, 21.0, 27.0][ends]
    };
    if !axis.is_log() {
        let each = |count: &usize| ticks.iter().step_by(*count).cloned().collect::<Vec<_>>();
        let fits = |named: &Vec<(f64, String)>| named.windows(2).all(|pair| room(pair[0].0, pair[1].0));
        return (1..=ticks.len()).map(|count| each(&count)).find(fits).unwrap_or_default();
    }
    let mut named: Vec<(f64, String)> = Vec::new();
    for (place, label) in ticks {
        if named.last().is_none_or(|(before, _)| room(*before, place)) {
            named.push((place, label));
        }
    }
    named
}

fn grid(axis: &Axis) -> Markup {
    html! {
        @for (place, _) in axis.ticks() {
            line.grid x1=(percent(place)) x2=(percent(place)) y1="0" y2="100%" {}
        }
    }
}

/// Text at the ends stays within.
fn anchor(place: f64) -> &'static str {
    match place {
        ..4.0 => "start",
        96.0.. => "end",
        _ => "middle",
    }
}

/// A coordinate.
pub(super) fn percent(place: f64) -> String {
    format!("{place:.2}%")
}

/// A bar from one place to another, in percent; at least a line.
pub(super) fn bar(class: &str, from: f64, to: f64, height: u32) -> Markup {
    // Without any width it would not be drawn.
    let width = percent((to - from).max(0.1));
    let inner = height.saturating_sub(8);
    html! { rect.bar.(class) x=(percent(from)) width=(width) y="4" height=(inner) {} }
}

/// A table of numbers.
#[derive(Debug, Default)]
pub(super) struct Table {
    caption: String,
    head: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Table {
    /// Without lines.
    pub(super) fn new(caption: impl Into<String>, head: &[&str]) -> Self {
        let head = head.iter().map(|&name| name.to_owned()).collect();
        Self { caption: caption.into(), head, lines: Vec::new() }
    }

    /// Adds a line; its first cell names it.
    pub(super) fn line(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(cells.into_iter().collect());
    }

    /// As it stands. Nothing if it is empty.
    pub(super) fn open(&self) -> Markup {
        if self.lines.is_empty() {
            return Markup::default();
        }
        html! {
            // A region that scrolls must be reachable by the keyboard.
            div.scroll role="region" aria-label=(self.caption) tabindex="0" {
                table {
                    caption { (self.caption) }
                    thead { tr { @for name in &self.head { th scope="col" { (name) } } } }
                    tbody {
                        @for line in &self.lines {
                            tr {
                                @for (place, cell) in line.iter().enumerate() {
                                    @if place == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// To be opened by those who want it, under this name. Nothing if it is empty.
    pub(super) fn folded(&self, name: &str) -> Markup {
        html! { @if !self.lines.is_empty() { details { summary { (name) } (self.open()) } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::number::{ms, size};

    fn names(axis: &Axis) -> Vec<String> {
        named(axis).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn the_names_below_an_axis_are_regular() {
        assert_eq!(names(&Axis::from_zero(457.0, ms)), ["0 ms", "200 ms", "400 ms"]);
        assert_eq!(names(&Axis::from_zero(3.9, ms)), ["0 ms", "1 ms", "2 ms", "3 ms", "4 ms"]);
        assert_eq!(names(&Axis::from_zero(0.0, size)).first().map(String::as_str), Some("0 B"));
        assert_eq!(names(&Axis::between(1.0, 2.0, ms)), ["1 ms", "2 ms"]);
    }
}
