//! A cell as a picture: a panel per phase, a bar per engine, a line from the slowest to the fastest
//! repeat.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use terrapin_base::{Error, Result};

use crate::summary::{Contender, Summary};

const PANEL: (u32, u32) = (330, 210);
const COLUMNS: usize = 3;
const HEAD: u32 = 40;
/// Where bars begin and end in a panel; names are before them, figures behind.
const BARS: (i32, i32) = (80, 265);
const TERRAPIN: RGBColor = RGBColor(0x1b, 0x7f, 0x5c);
const LOGGED: RGBColor = RGBColor(0x6b, 0x7a, 0x8f);
const UNLOGGED: RGBColor = RGBColor(0xc4, 0xcc, 0xd6);
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);

/// The picture of a cell.
pub fn svg(summary: &Summary) -> Result<String> {
    let rows = summary.phases.len().div_ceil(COLUMNS).max(1);
    let size = (
        PANEL.0 * COLUMNS as u32,
        HEAD + PANEL.1 * u32::try_from(rows).unwrap_or(1),
    );
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (head, body) = root.split_vertically(HEAD);
        let title = format!(
            "{}: thousands of operations a second (pale: no log)",
            summary.title
        );
        say(&head, &title, (12, 22), 20, HPos::Left)?;
        for (phase, panel) in summary
            .phases
            .iter()
            .zip(body.split_evenly((rows, COLUMNS)))
        {
            self::panel(&panel, phase, summary)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn panel(area: &Area<'_>, phase: &str, summary: &Summary) -> Result<()> {
    say(area, phase, (12, 12), 18, HPos::Left)?;
    let shown: Vec<_> = summary
        .contenders
        .iter()
        .filter_map(|c| Some((c, c.rows.get(phase)?.rate)))
        .collect();
    let most = shown.iter().map(|(_, r)| r.high).fold(0.0, f64::max);
    let x = |value: f64| {
        let share = if most > 0.0 { value / most } else { 0.0 };
        BARS.0 + (share * f64::from(BARS.1 - BARS.0)) as i32
    };
    let step = (PANEL.1 as i32 - 34) / summary.contenders.len().max(1) as i32;
    let mut top = 26;
    for (contender, rate) in shown {
        let middle = top + step / 2;
        let bar = [
            (BARS.0, top + 3),
            (x(rate.median).max(BARS.0 + 1), top + step - 3),
        ];
        draw(area, &Rectangle::new(bar, colour(contender).filled()))?;
        let whisker = vec![(x(rate.low), middle), (x(rate.high), middle)];
        draw(area, &PathElement::new(whisker, INK.stroke_width(1)))?;
        say(
            area,
            &contender.engine,
            (BARS.0 - 5, middle),
            12,
            HPos::Right,
        )?;
        let figure = format!("{:.1}", rate.median / 1000.0);
        say(area, &figure, (BARS.1 + 6, middle), 15, HPos::Left)?;
        top += step;
    }
    Ok(())
}

fn colour(contender: &Contender) -> RGBColor {
    if contender.engine.starts_with("terrapin") {
        TERRAPIN
    } else if contender.logged {
        LOGGED
    } else {
        UNLOGGED
    }
}

fn say(area: &Area<'_>, text: &str, at: (i32, i32), size: u32, side: HPos) -> Result<()> {
    let style = ("sans-serif", size)
        .into_text_style(area)
        .color(&INK)
        .pos(Pos::new(side, VPos::Center));
    area.draw_text(text, &style, at).map_err(failed)
}

fn draw<'a, 'b, E>(area: &Area<'a>, element: &'b E) -> Result<()>
where
    &'b E: plotters::element::PointCollection<'b, (i32, i32), plotters::element::BackendCoordOnly>,
    E: plotters::element::Drawable<SVGBackend<'a>, plotters::element::BackendCoordOnly>,
{
    area.draw(element).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("cannot draw a plot: {error}"))
}
