//! The charts: a panel per setting, a row per peer, a mark per figure.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::book::{Book, Measured, Scenario};
use crate::numbers::{three_digits, time};
use crate::peer::Peer;
use crate::setting::Setting;

const WIDTH: u32 = 900;
const ROW: u32 = 20;
const HEAD: u32 = 54;
const CAPTION: u32 = 28;
const AXIS: u32 = 24;
const FOOT: u32 = 30;

const INK: RGBColor = RGBColor(40, 44, 52);
const FAINT: RGBColor = RGBColor(222, 224, 228);
const OWN: RGBColor = RGBColor(214, 84, 0);
const OTHER: RGBColor = RGBColor(52, 101, 164);

/// The name of a mark in the legend, and its figure for a row.
type Mark = (&'static str, fn(&Measured) -> f64);

struct Chart {
    file: &'static str,
    title: &'static str,
    /// The unit of the axis, and which end is better.
    axis: &'static str,
    scenario: Scenario,
    marks: &'static [Mark],
    write: fn(f64) -> String,
}

const CHARTS: &[Chart] = &[
    Chart {
        file: "cycle.svg",
        title: "Lock and unlock, alone",
        axis: "time of a cycle, less is better",
        scenario: Scenario::Alone,
        marks: &[("p50", Measured::p50)],
        write: time,
    },
    Chart {
        file: "throughput.svg",
        title: "Turns per second, 8 threads on one key",
        axis: "turns per second, more is better",
        scenario: Scenario::EightThreads,
        marks: &[("turns", Measured::per_second)],
        write: three_digits,
    },
    Chart {
        file: "waits.svg",
        title: "Waiting for the lock, 8 threads on one key",
        axis: "time of a lock call, less is better",
        scenario: Scenario::EightThreads,
        marks: &[("p50", Measured::p50), ("longest", Measured::longest)],
        write: time,
    },
    Chart {
        file: "hand-off.svg",
        title: "Hand-off between processes, after 20 to 40 ms of waiting",
        axis: "from unlock in one process to lock in the other, less is better",
        scenario: Scenario::HandOff,
        marks: &[("p50", Measured::p50), ("longest", Measured::longest)],
        write: time,
    },
    Chart {
        file: "cpu.svg",
        title: "Processor time of a turn, 8 threads on one key",
        axis: "processor time, less is better",
        scenario: Scenario::EightThreads,
        marks: &[
            ("server", Measured::server_cpu),
            ("clients", Measured::client_cpu),
        ],
        write: time,
    },
];

/// A panel: peers with their figures.
type Rows = Vec<(Peer, Vec<f64>)>;

/// Draws each chart for which there are figures.
pub(crate) fn write(out: &Path, settings: &[Setting], book: &Book) -> Result<()> {
    for chart in CHARTS {
        let panel = |setting: &Setting| (setting.title(), chart.rows(*setting, book));
        let panels: Vec<_> = settings
            .iter()
            .map(panel)
            .filter(|(_, rows)| !rows.is_empty())
            .collect();
        if !panels.is_empty() {
            chart
                .draw(&out.join(chart.file), &panels)
                .map_err(|why| anyhow!("{}: {why}", chart.file))?;
        }
    }
    Ok(())
}

type Drawn<'a, T> = Result<T, DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

impl Chart {
    fn rows(&self, setting: Setting, book: &Book) -> Rows {
        let here = book
            .iter()
            .filter(|((s, c, _), _)| (*s, *c) == (setting, self.scenario));
        let figures = |of: &Measured| self.marks.iter().map(|(_, figure)| figure(of)).collect();
        let measured = here.filter(|(_, measured)| !measured.is_empty());
        measured
            .map(|((.., peer), measured)| (*peer, figures(measured)))
            .collect()
    }

    fn draw<'a>(&self, file: &'a Path, panels: &[(&str, Rows)]) -> Drawn<'a, ()> {
        // One more row, because plotters leaves half a row free at each end.
        let height =
            |rows: &Rows| u32::try_from(rows.len() + 1).unwrap_or(0) * ROW + CAPTION + AXIS;
        let total = HEAD + FOOT + panels.iter().map(|(_, rows)| height(rows)).sum::<u32>();
        let area = SVGBackend::new(file, (WIDTH, total)).into_drawing_area();
        area.fill(&WHITE)?;
        self.head(&area)?;
        let figures = || {
            panels
                .iter()
                .flat_map(|(_, rows)| rows)
                .flat_map(|(_, figures)| figures)
        };
        let low = figures().copied().fold(f64::INFINITY, f64::min);
        let high = figures().copied().fold(0.0, f64::max);
        // Room for the labels, left of the lowest mark and right of the highest.
        let room = (high / low).powf(0.15);
        let mut rest = area.split_vertically(HEAD).1;
        for (title, rows) in panels {
            let (panel, below) = rest.split_vertically(height(rows));
            self.panel(&panel, title, rows, low / room..high * room)?;
            rest = below;
        }
        let about = format!("{}; logarithmic", self.axis);
        rest.draw_text(&about, &font(13, INK), (180, 8))?;
        area.present()
    }

    /// Title and legend.
    fn head<'a>(&self, area: &DrawingArea<SVGBackend<'a>, Shift>) -> Drawn<'a, ()> {
        area.draw_text(self.title, &font(20, INK), (14, 8))?;
        let legend = if self.marks.len() < 2 {
            &[]
        } else {
            self.marks
        };
        for (number, (name, _)) in legend.iter().enumerate() {
            let x = 180 + 100 * i32::try_from(number).unwrap_or(0);
            area.draw(
                &(EmptyElement::at((x, 44))
                    + mark(number, INK)
                    + Text::new(*name, (10, -7), font(13, INK))),
            )?;
        }
        Ok(())
    }

    fn panel<'a>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, Shift>,
        title: &str,
        rows: &Rows,
        range: std::ops::Range<f64>,
    ) -> Drawn<'a, ()> {
        let mut chart = ChartBuilder::on(area)
            .caption(title, font(15, INK))
            .margin_right(20)
            .x_label_area_size(AXIS)
            .y_label_area_size(170)
            .build_cartesian_2d(range.log_scale(), (0..rows.len()).into_segmented())?;
        // The first peer is at the top, where the axis ends. plotters also asks for one place that
        // has no row.
        let row = |place: usize| rows.len().checked_sub(place + 1);
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(WHITE)
            .bold_line_style(FAINT)
            .x_labels(8)
            .x_label_formatter(&|value| (self.write)(*value))
            .y_labels(rows.len())
            .y_label_formatter(&|place| match place {
                SegmentValue::CenterOf(place) => {
                    row(*place).map_or("", |row| rows[row].0.title()).to_owned()
                }
                _ => String::new(),
            })
            .label_style(font(13, INK))
            .draw()?;
        for (place, (peer, figures)) in rows.iter().rev().enumerate() {
            let color = if *peer == Peer::Relatch { OWN } else { OTHER };
            let highest = figures.iter().copied().fold(0.0, f64::max);
            chart.draw_series(figures.iter().enumerate().map(|(which, figure)| {
                #[allow(clippy::float_cmp, reason = "it is one of them")]
                let (x, side) = if *figure == highest {
                    (9, HPos::Left)
                } else {
                    (-9, HPos::Right)
                };
                let style = font(12, color).pos(Pos::new(side, VPos::Center));
                EmptyElement::at((*figure, SegmentValue::CenterOf(place)))
                    + mark(which, color)
                    + Text::new((self.write)(*figure), (x, 0), style)
            }))?;
        }
        Ok(())
    }
}

/// A dot or a ring, so that marks can be distinguished without colours.
fn mark(number: usize, color: RGBColor) -> Circle<(i32, i32), i32> {
    let style = if number == 0 {
        color.filled()
    } else {
        color.stroke_width(2)
    };
    Circle::new((0, 0), 5, style)
}

fn font(size: i32, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color)
}
