//! The report as one HTML file with its charts in it: nothing is loaded from anywhere.

use std::fmt::Write as _;

use super::chart::{Axes, Bar, Scale, bars, lines};
use super::report::Report;
use super::summary::BESIDE_THE_FIGURES;

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 820px; margin: 2rem auto; padding: 0 1rem; \
color: #222; background: #fff } \
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums } \
th, td { border-bottom: 1px solid #ddd; padding: .25rem .7rem; text-align: right } \
th:first-child, td:first-child { text-align: left } \
svg { max-width: 100%; height: auto } \
.conditions { color: #555; font-size: 13px }";

/// The page.
///
/// # Errors
/// A chart cannot be drawn.
pub(super) fn page(report: &Report) -> anyhow::Result<String> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>outflow: the log against polling</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>The log against polling</h1>\n<h2>In words</h2>\n<ul>\n"
    );
    for sentence in &report.summary {
        let _ = writeln!(page, "<li>{}</li>", escape(sentence));
    }
    page.push_str(
        "</ul>\n<h2>What polling does better, and what else no figure shows</h2>\n<ul>\n",
    );
    for sentence in BESIDE_THE_FIGURES {
        let _ = writeln!(page, "<li>{}</li>", escape(sentence));
    }
    page.push_str("</ul>\n");
    for scenario in report.tally.scenarios() {
        let _ = writeln!(page, "<h2>{}</h2>", escape(scenario));
        page.push_str(&charts(report, scenario)?);
        table(&mut page, report, scenario);
    }
    page.push_str("<h2>Conditions</h2>\n<p class=\"conditions\">");
    for line in report.conditions() {
        let _ = writeln!(page, "{}<br>", escape(&line));
    }
    page.push_str("</p>\n</body>\n</html>\n");
    Ok(page)
}

fn table(page: &mut String, report: &Report, scenario: &str) {
    page.push_str("<table>\n<tr>");
    for cell in report.header(scenario) {
        let _ = write!(page, "<th>{}</th>", escape(&cell));
    }
    page.push_str("</tr>\n");
    for row in report.rows(scenario) {
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<td>{}</td>", escape(&cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

/// A chart of lines over time: which lines, title, name of the vertical axis.
const OVER_TIME: [(&str, &str, &str, Scale); 6] = [
    ("lag over time", "Lag over time", "events under way", Scale::Linear),
    ("latency over time", "Latency over time", "longest in 100 ms, ms", Scale::Logarithmic),
    ("dead rows over time", "Dead rows over time", "rows", Scale::Linear),
    ("table over time", "The table over time", "MiB", Scale::Linear),
    ("indexes over time", "Its indexes over time", "MiB", Scale::Linear),
    ("log kept by the slot over time", "Log kept by the slot over time", "MiB", Scale::Linear),
];

/// Charts of bars: what they show, their parts, and the axis.
const BARS: [(&str, &[&str], &str); 8] = [
    ("Highest rate kept up", &["highest rate kept up"], "events a second"),
    ("Throughput", &["throughput"], "events a second"),
    (
        "CPU time",
        &["PostgreSQL CPU, backends", "PostgreSQL CPU, walsender", "relay CPU", "Redis CPU"],
        "us an event, or ms a second",
    ),
    ("WAL", &["WAL"], "bytes an event, or a second"),
    ("Statements", &["statements"], "a second"),
    ("Time to recover", &["time to recover", "time to recover, longest"], "ms"),
    ("Repeated entries", &["repeated entries"], "entries"),
    ("Lost events", &["lost events"], "events"),
];

fn charts(report: &Report, scenario: &str) -> anyhow::Result<String> {
    let mut html = String::new();
    let percentiles = report.tally.lines(scenario, "latency by percentile");
    if !percentiles.is_empty() {
        let axes = Axes { x: "percentile", y: "commit to entry, ms" };
        let label = |nines: &f64| {
            // lines between whole nines would not be at round values
            if nines.fract().abs() > 1e-6 {
                return String::new();
            }
            format!("{}%", rounded(100.0 * (1.0 - 10f64.powf(-nines))))
        };
        let chart = lines(&percentiles, axes, Scale::Logarithmic, &label)?;
        figure(&mut html, "Latency by percentile", &chart);
    }
    for (chart, title, y, scale) in OVER_TIME {
        let found = report.tally.lines(scenario, chart);
        // a chart of nothing but zeros shows nothing that the table does not
        if found.iter().any(|line| line.points.iter().any(|point| point.1 > 0.0)) {
            let axes = Axes { x: "seconds", y };
            let svg = lines(&found, axes, scale, &|seconds| rounded(*seconds))?;
            figure(&mut html, title, &svg);
        }
    }
    for (title, parts, axis) in BARS {
        let stacks = stacks(report, scenario, parts);
        if stacks.iter().any(|bar| bar.parts.iter().any(|part| *part > 0.0)) {
            figure(&mut html, title, &bars(&stacks, parts, axis)?);
        }
    }
    Ok(html)
}

/// With the decimals that it has.
fn rounded(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A bar for each competitor that has any of these figures.
fn stacks(report: &Report, scenario: &str, parts: &[&str]) -> Vec<Bar> {
    let tally = &report.tally;
    let value = |subject: &str, part: &str| tally.find(scenario, subject, part);
    let subjects = tally.subjects(scenario).into_iter();
    subjects
        .filter(|subject| parts.iter().any(|part| value(subject, part).is_some()))
        .map(|subject| Bar {
            name: subject.to_owned(),
            parts: parts
                .iter()
                .map(|part| value(subject, part).map_or(0.0, |found| found.median))
                .collect(),
        })
        .collect()
}

fn figure(html: &mut String, title: &str, svg: &str) {
    let _ = writeln!(html, "<h3>{}</h3>\n{svg}", escape(title));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::compare::tally::Tally;
    use crate::bench::figure::Unit;

    #[test]
    fn labels_have_the_decimals_that_they_need() {
        assert_eq!([0.0, 0.5, 90.0, 99.99].map(rounded), ["0", "0.5", "90", "99.99"]);
    }

    #[test]
    fn a_page_holds_its_charts_and_loads_nothing() {
        let mut tally = Tally::default();
        for (subject, value) in [("connector", 1.0), ("<polling>", 2.0)] {
            tally.add("backlog", subject, ("relay CPU", Unit::Cpu, value));
            tally.add("backlog", subject, ("WAL", Unit::Bytes, value * 100.0));
            let points = vec![(0.0, 0.0), (1.0, value)];
            tally.line("backlog", subject, "latency by percentile", points.clone());
            tally.line("backlog", subject, "lag over time", points);
        }
        let page = page(&Report::example(tally)).unwrap();
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(page.contains("&lt;polling&gt;") && !page.contains("<polling>"));
        assert!(!page.contains("src=") && !page.contains("href="));
    }
}
