//! Charts as SVG.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoSegmentedCoord, LineSeries,
    PathElement, RGBColor, Rectangle, SVGBackend, SegmentValue, SeriesLabelPosition, TRANSPARENT,
    WHITE,
};

use super::tally::Series;

const SIZE: (u32, u32) = (760, 340);
const FONT: (&str, i32) = ("sans-serif", 13);
/// Told apart also by those who do not see every colour.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

fn colour(index: usize) -> RGBColor {
    COLOURS.get(index % COLOURS.len()).copied().unwrap_or(BLACK)
}

/// Names of the axes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axes {
    pub(super) x: &'static str,
    pub(super) y: &'static str,
}

/// How values stand on the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    /// Each line a tenth of the one above; it ends at [`LEAST`].
    Logarithmic,
}

/// A logarithmic scale has no 0.
const LEAST: f64 = 0.05;

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Logarithmic => value.max(LEAST).log10(),
        }
    }

    /// What stands at a line of the mesh.
    fn label(self, place: f64) -> String {
        match self {
            Self::Linear if place >= 10_000.0 => format!("{:.0}k", place / 1e3),
            Self::Linear if place.fract() == 0.0 => format!("{place:.0}"),
            Self::Linear => format!("{place:.2}"),
            // lines between powers of ten would not be at round values
            Self::Logarithmic if place.fract().abs() > 1e-6 => String::new(),
            Self::Logarithmic => format!("{}", 10f64.powf(place)),
        }
    }

    /// Where lines are least likely: percentiles rise to the upper end.
    fn legend(self) -> SeriesLabelPosition {
        match self {
            Self::Linear => SeriesLabelPosition::UpperLeft,
            Self::Logarithmic => SeriesLabelPosition::LowerRight,
        }
    }

    fn range(self, top: f64) -> std::ops::Range<f64> {
        match self {
            Self::Linear => 0.0..(if top > 0.0 { top * 1.2 } else { 1.0 }),
            Self::Logarithmic => LEAST.log10()..(self.place(top).ceil().max(1.0)),
        }
    }
}

/// Lines; `x_label` writes the values of the horizontal axis.
pub(super) fn lines(
    series: &[&Series],
    axes: Axes,
    scale: Scale,
    x_label: &dyn Fn(&f64) -> String,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    draw_lines(&area, series, axes, scale, x_label)?;
    drop(area);
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_lines(
    area: &Area<'_>,
    series: &[&Series],
    axes: Axes,
    scale: Scale,
    x_label: &dyn Fn(&f64) -> String,
) -> anyhow::Result<()> {
    let points = || series.iter().flat_map(|series| series.points.iter());
    let most = |value: fn(&(f64, f64)) -> f64| points().map(value).fold(0.0, f64::max);
    let (right, top) = (most(|point| point.0).max(1.0), most(|point| point.1));
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        // half of the last label stands beyond the axis
        .margin_right(30)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..right, scale.range(top))
        .map_err(failed)?;
    chart
        .configure_mesh()
        .label_style(FONT)
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(x_label)
        .y_label_formatter(&|place| scale.label(*place))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(failed)?;
    for (index, series) in series.iter().enumerate() {
        let style = colour(index).stroke_width(2);
        let points = series.points.iter().map(|(x, y)| (*x, scale.place(*y)));
        chart
            .draw_series(LineSeries::new(points, style))
            .map_err(failed)?
            .label(series.subject.as_str())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(scale.legend())
        .label_font(FONT)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)
}

/// A bar of several parts.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    /// In the order of the legend.
    pub(super) parts: Vec<f64>,
}

/// Bars side by side, their parts on top of each other.
pub(super) fn bars(bars: &[Bar], legend: &[&str], axis: &'static str) -> anyhow::Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    draw_bars(&area, bars, legend, axis)?;
    drop(area);
    Ok(svg)
}

fn draw_bars(
    area: &Area<'_>,
    bars: &[Bar],
    legend: &[&str],
    axis: &'static str,
) -> anyhow::Result<()> {
    let top = bars.iter().map(|bar| bar.parts.iter().sum::<f64>()).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.25 } else { 1.0 };
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(70)
        .build_cartesian_2d((0..bars.len().saturating_sub(1)).into_segmented(), 0.0..top)
        .map_err(failed)?;
    let name = |value: &SegmentValue<usize>| match value {
        SegmentValue::CenterOf(index) => bars.get(*index).map(|bar| bar.name.clone()),
        _ => None,
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .label_style(FONT)
        .y_desc(axis)
        .x_labels(bars.len())
        .x_label_formatter(&|value| name(value).unwrap_or_default())
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(failed)?;
    for (part, label) in legend.iter().enumerate() {
        let style = colour(part).filled();
        let boxes = bars.iter().enumerate().map(|(index, bar)| {
            let below: f64 = bar.parts.iter().take(part).sum();
            let own = bar.parts.get(part).copied().unwrap_or(0.0);
            let corner = (SegmentValue::Exact(index), below);
            let mut rectangle =
                Rectangle::new([corner, (SegmentValue::Exact(index + 1), below + own)], style);
            rectangle.set_margin(0, 0, 40, 40);
            rectangle
        });
        chart
            .draw_series(boxes)
            .map_err(failed)?
            .label(*label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
    }
    chart
        .configure_series_labels()
        .label_font(FONT)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)
}

/// Drawing into a text fails only by a mistake in a chart.
fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_scale_is_labelled_at_powers_of_ten() {
        let scale = Scale::Logarithmic;
        assert_eq!(scale.label(2.0), "100");
        assert_eq!(scale.label(-1.0), "0.1");
        assert_eq!(scale.label(0.5), "");
        assert_eq!(scale.place(0.0), LEAST.log10());
        assert_eq!(Scale::Linear.label(20_000.0), "20k");
        assert_eq!(Scale::Linear.range(0.0), 0.0..1.0);
    }
}
