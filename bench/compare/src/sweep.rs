//! The sweep over χ as a picture: the output of `terrapin bench chi --json`, with write
//! amplification beside a model's figures.

use plotters::prelude::*;
use serde::Deserialize;
use terrapin_base::{Error, Result};

const PANEL: (u32, u32) = (420, 300);
const COLUMNS: usize = 2;
const MEASURED: RGBColor = RGBColor(0x1b, 0x7f, 0x5c);
const OTHER: RGBColor = RGBColor(0xc4, 0x6a, 0x1b);

/// A step, as far as it is drawn.
#[derive(Deserialize)]
struct Step {
    chi: f64,
    load_per_second: f64,
    tree_amplification: f64,
    log_amplification: f64,
    gets: Reads,
    scans: Reads,
}

#[derive(Deserialize)]
struct Reads {
    ops_per_second: f64,
    device_reads: f64,
}

/// A curve of a panel.
struct Curve<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
    colour: RGBColor,
}

/// The picture. `model` has the tree's write amplification at each step, or nothing.
pub fn svg(lines: &str, model: &[f64]) -> Result<String> {
    let steps: Vec<Step> = lines
        .lines()
        .map(serde_json::from_str)
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| Error::invalid(format!("not a line of bench chi --json: {e}")))?;
    if steps.is_empty() || !model.is_empty() && model.len() != steps.len() {
        return Err(Error::invalid("the model has a figure for each step")
            .with("steps", steps.len())
            .with("figures", model.len()));
    }
    let curve = |name, colour, figure: &dyn Fn(&Step) -> f64| Curve {
        name,
        points: steps.iter().map(|s| (s.chi, figure(s))).collect(),
        colour,
    };
    let mut written = vec![
        curve("tree", MEASURED, &|s| s.tree_amplification),
        curve("log", OTHER, &|s| s.log_amplification),
    ];
    if !model.is_empty() {
        written.push(Curve {
            name: "tree, by the model",
            points: steps
                .iter()
                .map(|s| s.chi)
                .zip(model.iter().copied())
                .collect(),
            colour: BLACK,
        });
    }
    let panels = [
        ("bytes written for each byte of the user's", written),
        (
            "load, thousands of records a second",
            vec![curve("load", MEASURED, &|s| s.load_per_second / 1000.0)],
        ),
        (
            "device reads an operation afterwards, at χ = 1",
            vec![
                curve("get (C, uniform)", MEASURED, &|s| s.gets.device_reads),
                curve("scan (E, uniform)", OTHER, &|s| s.scans.device_reads),
            ],
        ),
        (
            "thousands of operations a second afterwards, at χ = 1",
            vec![
                curve("gets", MEASURED, &|s| s.gets.ops_per_second / 1000.0),
                curve("scans", OTHER, &|s| s.scans.ops_per_second / 1000.0),
            ],
        ),
    ];
    let mut text = String::new();
    {
        let rows = panels.len().div_ceil(COLUMNS);
        let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        for ((title, curves), area) in panels.iter().zip(root.split_evenly((rows, COLUMNS))) {
            panel(&area, title, curves).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(
    area: &Area<'_>,
    title: &str,
    curves: &[Curve<'_>],
) -> std::result::Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let points = || curves.iter().flat_map(|c| &c.points);
    let most = points().map(|p| p.1).fold(0.0, f64::max) * 1.15;
    let last = points().map(|p| p.0).fold(2.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(title, ("sans-serif", 15))
        .x_label_area_size(28)
        .y_label_area_size(44)
        .build_cartesian_2d(
            (1.0..last).log_scale().base(2.0),
            0.0..most.max(f64::EPSILON),
        )?;
    chart
        .configure_mesh()
        .x_desc("χ of the load")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for curve in curves {
        let colour = curve.colour;
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), &colour).point_size(3))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("cannot draw a plot: {error}"))
}
