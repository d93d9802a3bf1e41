//! One kind of picture for all scenarios: a row per peer, a mark per figure, and the figures in words at the right.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: i32 = 900;
/// Where the names end, and the axis begins.
const LEFT: i32 = 190;
/// Where the axis ends; the figures follow.
const RIGHT: i32 = 640;
const ROW: i32 = 26;
const FONT: &str = "sans-serif";

const INK: RGBColor = RGBColor(40, 44, 52);
const FAINT: RGBColor = RGBColor(222, 224, 228);
const GREY: RGBColor = RGBColor(120, 126, 138);
const BAND: RGBColor = RGBColor(255, 243, 224);
const OWN: RGBColor = RGBColor(214, 84, 0);
const OTHER: RGBColor = RGBColor(52, 101, 164);

/// A picture.
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What is drawn along the axis, its unit, and which end is better.
    pub(crate) axis: String,
    /// Names of the marks of a row, if there are several.
    pub(crate) marks: Vec<&'static str>,
    pub(crate) panels: Vec<Panel>,
    /// How a figure of the axis is written.
    pub(crate) write: fn(f64) -> String,
    pub(crate) scale: Scale,
}

/// How figures become places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    FromZero,
    /// Logarithmic, in whole decades, where the figures are far apart; else from zero.
    AsNeeded,
}

/// Rows under a heading; without one if it is empty.
pub(crate) struct Panel {
    pub(crate) heading: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// A peer.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) look: Look,
    /// As many as there are marks, or one.
    pub(crate) values: Vec<f64>,
    /// In words.
    pub(crate) figures: String,
}

/// How a row stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Own,
    Other,
    /// Not a lock.
    Floor,
}

impl Look {
    fn color(self) -> RGBColor {
        match self {
            Look::Own => OWN,
            Look::Other => OTHER,
            Look::Floor => GREY,
        }
    }
}

/// From figures to places.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    fn of(values: &[f64], scale: Scale) -> Axis {
        let high = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let low = values.iter().copied().fold(high, f64::min);
        if scale == Scale::AsNeeded && low > 0.0 && high / low > 20.0 {
            let decade = |value: f64| 10f64.powf(value);
            return Axis { low: decade(low.log10().floor()), high: decade(high.log10().ceil()), log: true };
        }
        let step = step(high);
        Axis { low: 0.0, high: (high / step).ceil() * step, log: false }
    }

    #[allow(clippy::cast_possible_truncation, reason = "a place on a picture")]
    fn place(&self, value: f64) -> i32 {
        let part = if self.log {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        LEFT + (f64::from(RIGHT - LEFT) * part.clamp(0.0, 1.0)).round() as i32
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = vec![self.low];
        let next = |tick: f64| if self.log { tick * 10.0 } else { tick + step(self.high) };
        while let Some(&last) = ticks.last()
            && next(last) <= self.high * 1.001
        {
            ticks.push(next(last));
        }
        ticks
    }
}

/// About five steps of a round size up to `high`.
fn step(high: f64) -> f64 {
    let rough = high / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|size| size * decade >= rough);
    round.unwrap_or(10.0) * decade
}

/// Draws into a file.
pub(crate) fn draw(file: &Path, chart: &Chart) -> Result<()> {
    let several = chart.marks.len() > 1;
    let top = if several { 84 } else { 62 };
    let panels = chart.panels.iter().map(|panel| height(panel) + 14).sum::<i32>();
    let bottom = top + panels - 14;
    let area =
        SVGBackend::new(file, (WIDTH.unsigned_abs(), (bottom + 54).unsigned_abs())).into_drawing_area();
    let values: Vec<f64> =
        chart.panels.iter().flat_map(|panel| &panel.rows).flat_map(|row| row.values.clone()).collect();
    let axis = Axis::of(&values, chart.scale);
    let drawn = area
        .fill(&WHITE)
        .and_then(|()| text(&area, &chart.title, (14, 24), 20, INK, HPos::Left, true))
        .and_then(|()| legend(&area, chart))
        .and_then(|()| {
            let mut y = top;
            for panel in &chart.panels {
                draw_panel(&area, panel, &axis, y)?;
                y += height(panel) + 14;
            }
            scale(&area, chart, &axis, bottom)
        })
        .and_then(|()| area.present());
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", file.display()))
}

type Drawn = std::result::Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn height(panel: &Panel) -> i32 {
    let rows = i32::try_from(panel.rows.len()).unwrap_or(0) * ROW;
    rows + if panel.heading.is_empty() { 0 } else { 24 }
}

/// Which mark is what.
fn legend(area: &Area<'_>, chart: &Chart) -> Drawn {
    if chart.marks.len() < 2 {
        return Ok(());
    }
    let mut x = LEFT;
    for (number, name) in chart.marks.iter().enumerate() {
        mark(area, number, (x, 54), GREY)?;
        text(area, name, (x + 12, 54), 13, INK, HPos::Left, false)?;
        x += 130;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel, axis: &Axis, top: i32) -> Drawn {
    let mut y = top;
    if !panel.heading.is_empty() {
        text(area, panel.heading, (14, y + 10), 14, INK, HPos::Left, true)?;
        y += 24;
    }
    let bottom = top + height(panel);
    for row in panel.rows.iter().zip(0..).filter(|(row, _)| row.look == Look::Own) {
        let (_, number) = row;
        let band = [(8, y + number * ROW), (WIDTH - 8, y + (number + 1) * ROW)];
        area.draw(&Rectangle::new(band, BAND.filled()))?;
    }
    for tick in axis.ticks() {
        let x = axis.place(tick);
        area.draw(&PathElement::new(vec![(x, y), (x, bottom)], FAINT.stroke_width(1)))?;
    }
    for row in &panel.rows {
        draw_row(area, row, axis, y + ROW / 2)?;
        y += ROW;
    }
    Ok(())
}

fn draw_row(area: &Area<'_>, row: &Row, axis: &Axis, y: i32) -> Drawn {
    let (color, own) = (row.look.color(), row.look == Look::Own);
    let ink = if own { OWN } else { INK };
    text(area, row.name, (LEFT - 12, y), 14, ink, HPos::Right, own)?;
    text(area, &row.figures, (RIGHT + 14, y), 13, ink, HPos::Left, own)?;
    let places: Vec<i32> = row.values.iter().map(|value| axis.place(*value)).collect();
    let from = if places.len() == 1 { LEFT } else { places.iter().copied().min().unwrap_or(LEFT) };
    let to = places.iter().copied().max().unwrap_or(LEFT);
    area.draw(&PathElement::new(vec![(from, y), (to, y)], color.mix(0.45).stroke_width(3)))?;
    for (number, place) in places.iter().enumerate() {
        mark(area, number, (*place, y), color)?;
    }
    Ok(())
}

/// A dot, a ring, or a stroke: to be told apart without colours.
fn mark(area: &Area<'_>, number: usize, (x, y): (i32, i32), color: RGBColor) -> Drawn {
    match number {
        0 => area.draw(&Circle::new((x, y), 5, color.filled())),
        1 => {
            area.draw(&Circle::new((x, y), 5, WHITE.filled()))?;
            area.draw(&Circle::new((x, y), 5, color.stroke_width(2)))
        }
        _ => area.draw(&Rectangle::new([(x - 1, y - 7), (x + 2, y + 7)], color.filled())),
    }
}

/// The figures of the axis, and what they are.
fn scale(area: &Area<'_>, chart: &Chart, axis: &Axis, y: i32) -> Drawn {
    area.draw(&PathElement::new(vec![(LEFT, y), (RIGHT, y)], GREY.stroke_width(1)))?;
    for tick in axis.ticks() {
        text(area, &(chart.write)(tick), (axis.place(tick), y + 14), 12, INK, HPos::Center, false)?;
    }
    let kind = if axis.log { ", log scale" } else { "" };
    text(area, &format!("{}{kind}", chart.axis), (LEFT, y + 36), 13, INK, HPos::Left, false)
}

fn text(
    area: &Area<'_>,
    words: &str,
    place: (i32, i32),
    size: i32,
    color: RGBColor,
    side: HPos,
    bold: bool,
) -> Drawn {
    let weight = if bold { FontStyle::Bold } else { FontStyle::Normal };
    let style =
        TextStyle::from((FONT, size, weight).into_font()).color(&color).pos(Pos::new(side, VPos::Center));
    area.draw_text(words, &style, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_logarithmic_where_the_figures_are_far_apart() {
        let axis = Axis::of(&[30.0, 70_000.0], Scale::AsNeeded);
        assert_eq!((axis.log, axis.ticks().len(), axis.place(10.0)), (true, 5, LEFT));
        let axis = Axis::of(&[0.0, 47.0], Scale::AsNeeded);
        assert_eq!((axis.log, axis.ticks()), (false, vec![0.0, 10.0, 20.0, 30.0, 40.0, 50.0]));
        assert_eq!(axis.place(50.0), RIGHT);
    }
}
